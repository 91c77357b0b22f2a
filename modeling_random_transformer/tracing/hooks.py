"""Records intermediate values with hooks and instrumented eager attention within a `with` block."""

from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from accelerate.utils import convert_file_size_to_int
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from ..modeling_random_transformer import eager_attention_forward, ungroup_weights
from .record import Recorder, Selection, Trace

TRACED = "random_transformer_traced"  # name of the instrumented attention in transformers' registry


@contextmanager
def trace(
    model: PreTrainedModel,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    max_memory: int | str = "1GiB",
) -> Iterator[Trace]:
    """Record what the model computes within the `with` block, using eager attention.

    All indices start at 0. Paths of the decoder's first pass have no step prefix. Paths of later passes, such as the
    next tokens of `generate()`, start with `step.1.`, `step.2.` and so on. Values are detached copies with the batch
    dimension first: `[batch, length, width]`, and per head `[batch, query_len, key_len]` for scores and weights.

    Args:
        model: a model of this package.
        layers: layers to record, in both stacks; embeddings and outputs are always recorded.
        heads: attention heads to record.
        steps: decoder passes to record; the encoder belongs to the first one.
        max_memory: limit in bytes, or a string such as `"500MB"`. Values beyond it are skipped, with a warning.

    Raises:
        ValueError: the model is not a Random Transformer, is compiled or already traced, or an index is out of range.
    """
    stacks = {stack_name(module): module for module in model.modules() if hasattr(module, "embed_positions")}
    check_model(model, stacks)
    check_indices("layers", layers, max(len(stack.layers) for stack in stacks.values()))
    check_indices("heads", heads, model.config.num_heads)
    check_indices("steps", steps, None)
    recorded = Trace(model.config)
    recorder = Recorder(recorded, Selection(layers, heads, steps), convert_file_size_to_int(max_memory))
    with ExitStack() as on_exit:
        hooks = HookManager(recorder, on_exit)
        on_exit.callback(setattr, model.config, "_attn_implementation", model.config._attn_implementation)
        model.config._attn_implementation = TRACED
        for name, stack in stacks.items():
            hooks.hook_stack(name, stack)
        if isinstance(getattr(model, "lm_head", None), nn.Module):
            hooks.add_forward_hook(model.lm_head, hooks.record_output_layer)
        yield recorded


def stack_name(stack: Any) -> str:
    """`"encoder"` or `"decoder"`."""
    return "decoder" if stack.layers[0].self_attn.is_causal else "encoder"


def check_model(model: PreTrainedModel, stacks: dict[str, Any]) -> None:
    """Raise a ValueError for models that cannot be traced."""
    if not stacks:
        raise ValueError(f"model must be a Random Transformer, got {type(model).__name__}.")
    if model.config._attn_implementation == TRACED:
        raise ValueError("model must not be traced already.")
    if any(module._compiled_call_impl is not None for module in model.modules()):
        raise ValueError("model must not be compiled, since hooks would not run.")


def check_indices(name: str, numbers: Collection[int] | None, count: int | None) -> None:
    """Raise a ValueError for indices outside 0 to `count - 1`; `None` means no limit."""
    allowed = "0 or more" if count is None else f"from 0 to {count - 1}"
    if numbers is not None and not all(number >= 0 and (count is None or number < count) for number in numbers):
        raise ValueError(f"{name} must be {allowed}, got {list(numbers)}.")


class HookManager:
    """Installs hooks and wrapped methods that pass values to a recorder; `on_exit` removes them."""

    def __init__(self, recorder: Recorder, on_exit: ExitStack):
        self.recorder, self.on_exit = recorder, on_exit

    def record(self, path: str, value: Tensor, layer: int | None = None) -> None:
        """Record a value if its layer and the current step are selected."""
        if self.recorder.wants(layer):
            self.recorder(path, value)

    def replace_method(self, module: nn.Module, name: str, replacement: Callable) -> Callable:
        """Replace a method of one instance and return the original."""
        original = getattr(module, name)
        setattr(module, name, replacement)
        self.on_exit.callback(delattr, module, name)
        return original

    def add_forward_hook(self, module: nn.Module, hook: Callable[[Any, Any], None]) -> None:
        """Call `hook(inputs, outputs)` after each call of the module."""
        handle = module.register_forward_hook(lambda _, inputs, outputs: hook(inputs, outputs))
        self.on_exit.callback(handle.remove)

    def add_forward_pre_hook(self, module: nn.Module, hook: Callable[[nn.Module, tuple, dict[str, Any]], None]) -> None:
        """Call `hook(module, args, kwargs)` before each call of the module."""
        handle = module.register_forward_pre_hook(hook, with_kwargs=True)
        self.on_exit.callback(handle.remove)

    def record_output(self, module: nn.Module, path: str, layer: int | None = None) -> None:
        """Record what the module returns."""
        self.add_forward_hook(module, lambda _, outputs: self.record(path, outputs, layer))

    def hook_stack(self, name: str, stack: Any) -> None:
        """Record an encoder or a decoder."""
        self.hook_embedding(name, stack)
        for index, layer in enumerate(stack.layers):
            self.hook_layer(f"{name}.layers.{index}", index, layer)
        if isinstance(stack.layer_norm, nn.LayerNorm):
            self.hook_norm(f"{name}.final", stack.layer_norm)
        self.add_forward_hook(stack, lambda _, outputs: self.record(f"{name}.output", outputs[0]))

    def hook_embedding(self, name: str, stack: Any) -> None:
        """Record token ids and their embeddings up to the first layer's input (paper 3.4 and 3.5)."""

        def embed_ids(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
            self.recorder.start(name)
            if input_ids is not None:
                self.record(f"{name}.embedding.ids", input_ids)
            return original_embed_ids(input_ids, inputs_embeds)

        def embed(inputs_embeds: Tensor, start: int | Tensor, end: int | None) -> Tensor:
            self.record(f"{name}.embedding.token", inputs_embeds)
            self.record(f"{name}.embedding.scaled", inputs_embeds * stack.embed_scale)
            summed = original_embed(inputs_embeds, start, end)
            self.record(f"{name}.embedding.sum", summed)
            return summed

        original_embed_ids = self.replace_method(stack, "embed_ids", embed_ids)
        original_embed = self.replace_method(stack, "embed", embed)
        if stack.embed_positions is not None:
            self.record_output(stack.embed_positions, f"{name}.embedding.position")

    def hook_layer(self, path: str, index: int, layer: Any) -> None:
        """Record the sub-layers of a layer, and "Add & Norm" around each (paper Figure 1)."""
        norms = {"self_attn": layer.self_attn_layer_norm}
        if hasattr(layer, "encoder_attn"):
            norms["encoder_attn"] = layer.encoder_attn_layer_norm
        norms["ffn"] = layer.final_layer_norm
        pre_norm, previous = layer.config.norm_order == "pre", None
        for name, norm in norms.items():
            # The input of a norm is the sum of a residual connection: this one's (post-norm) or the previous one's.
            summed = previous if pre_norm else name
            self.hook_norm(f"{path}.{name}", norm, index, summed and f"{path}.{summed}.residual")
            if name != "ffn":
                self.hook_attention(f"{path}.{name}", index, getattr(layer, name))
            previous = name
        if pre_norm:
            self.record_output(layer, f"{path}.ffn.residual", index)
        self.record_output(layer.fc1, f"{path}.ffn.inner", index)
        self.record_output(layer.activation_fn, f"{path}.ffn.activation", index)
        self.record_output(layer.fc2, f"{path}.ffn.output", index)

    def hook_norm(self, path: str, norm: nn.LayerNorm, layer: int | None = None, input_path: str | None = None) -> None:
        """Record mean, variance and output of a layer norm, and its input under `input_path` if given."""

        def hook(inputs: Any, outputs: Tensor) -> None:
            if not self.recorder.wants(layer):
                return
            (states,) = inputs
            if input_path is not None:
                self.record(input_path, states, layer)
            states = states.to(torch.promote_types(states.dtype, torch.float32))
            self.record(f"{path}.mean", states.mean(-1), layer)
            self.record(f"{path}.variance", states.var(-1, correction=0), layer)
            self.record(f"{path}.layer_norm", outputs, layer)

        self.add_forward_hook(norm, hook)

    def hook_attention(self, path: str, layer: int, attention: Any) -> None:
        """Record each head, and the concatenation and projection of all heads (paper 3.2.2)."""
        hooks = AttentionHooks(path, layer, self)
        AttentionHooks.active[attention] = hooks
        self.on_exit.callback(AttentionHooks.active.pop, attention)
        self.add_forward_pre_hook(attention, hooks.save_query_shape)
        self.add_forward_hook(attention.out_proj, hooks.record_output_projection)

    def record_output_layer(self, _: Any, logits: Tensor) -> None:
        """Record logits, probabilities and the most probable token (paper 3.4)."""
        if not self.recorder.wants():
            return
        probabilities = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        self.record("logits", logits)
        self.record("probabilities", probabilities)
        self.record("choice", probabilities.argmax(-1))


class AttentionHooks:
    """Records the heads of one attention module."""

    active: "WeakKeyDictionary[nn.Module, AttentionHooks]" = WeakKeyDictionary()  # of the traced modules

    def __init__(self, path: str, layer: int, manager: HookManager):
        self.path, self.layer, self.manager = path, layer, manager
        self.batch = self.query_len = 0

    def save_query_shape(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Save the shape of the queries before those that share a source are grouped."""
        states = args[0] if args else kwargs["hidden_states"]
        self.batch, self.query_len = states.shape[:2]

    def record_heads(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float,
        output: Tensor,
        weights: Tensor,
    ) -> None:
        """Record every step of scaled dot-product attention (paper 3.2.1), `[sources, heads, …]`, by head."""
        if not self.manager.recorder.wants(self.layer):
            return
        scores = torch.matmul(query, key.transpose(-1, -2))
        mask = scores.new_zeros(()) if mask is None else mask
        by_query = {
            "query": query,
            "scores": scores,
            "scaled_scores": scores * scale,
            "mask": mask.expand(len(scores), scores.shape[1], *scores.shape[2:]),
            "weights": weights,
            "output": output.transpose(1, 2),
        }
        values = {name: ungroup_weights(states, self.batch, self.query_len) for name, states in by_query.items()}
        values = {"query": values.pop("query"), "key": key, "value": value} | values
        for head in self.manager.recorder.heads(query.shape[1]):
            for name, states in values.items():
                self.manager.record(f"{self.path}.head.{head}.{name}", states[:, head], self.layer)

    def record_output_projection(self, inputs: Any, outputs: Tensor) -> None:
        """Record the concatenated heads and their projection."""
        for name, states in {"concatenated": inputs[0], "output": outputs}.items():
            self.manager.record(f"{self.path}.{name}", states.reshape(self.batch, self.query_len, -1), self.layer)


def traced_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """Eager attention that records its steps while its module is traced."""
    output, weights = eager_attention_forward(module, query, key, value, mask, scaling, **kwargs)
    if module in AttentionHooks.active:
        AttentionHooks.active[module].record_heads(query, key, value, mask, scaling, output, weights)
    return output, weights


AttentionInterface.register(TRACED, traced_attention)
AttentionMaskInterface.register(TRACED, eager_mask)
