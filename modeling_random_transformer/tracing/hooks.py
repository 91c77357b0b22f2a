"""How values come into a trace: for its time, hooks on the modules, and the reference attention with an ear to it."""

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
from .record import Choice, Recorder, Trace

TRACED = "random_transformer_traced"  # the name of that attention among the library's implementations


@contextmanager
def trace(
    model: PreTrainedModel,
    layers: Collection[int] | None = None,
    heads: Collection[int] | None = None,
    steps: Collection[int] | None = None,
    max_memory: int | str = "1GiB",
) -> Iterator[Trace]:
    """Record what the model computes within the `with` block, by the reference attention.

    All numbers count from 0. The decoder's first pass has paths without a step; those of further passes, such as the
    next tokens of `generate()`, start with `step.1.`, `step.2.` and so on. Values are detached copies with the batch
    in front: `[batch, length, width]`, and per head `[batch, query_len, key_len]` for scores and weights.

    Args:
        model: a model of this package.
        layers: of either stack, those to record; embeddings and outputs always are.
        heads: those to record.
        steps: the decoder's passes to record; the encoder belongs to the first.
        max_memory: bytes, or a string such as `"500MB"`. What does not fit is left out, with a warning.

    Raises:
        ValueError: the model is of another kind, compiled or already traced; or it has no such layers or heads.
    """
    stacks = {stack_name(module): module for module in model.modules() if hasattr(module, "embed_positions")}
    check_model(model, stacks)
    check_numbers("layers", layers, max(len(stack.layers) for stack in stacks.values()))
    check_numbers("heads", heads, model.config.num_heads)
    check_numbers("steps", steps, None)
    found = Trace(model.config)
    record = Recorder(found, Choice(layers, heads, steps), convert_file_size_to_int(max_memory))
    with ExitStack() as on_exit:
        taps = Taps(record, on_exit)
        on_exit.callback(setattr, model.config, "_attn_implementation", model.config._attn_implementation)
        model.config._attn_implementation = TRACED
        for name, stack in stacks.items():
            taps.stack(name, stack)
        if isinstance(getattr(model, "lm_head", None), nn.Module):
            taps.after(model.lm_head, taps.output_layer)
        yield found


def stack_name(stack: Any) -> str:
    return "decoder" if stack.layers[0].self_attn.is_causal else "encoder"


def check_model(model: PreTrainedModel, stacks: dict[str, Any]) -> None:
    if not stacks:
        raise ValueError(f"model must be a Random Transformer, got {type(model).__name__}.")
    if model.config._attn_implementation == TRACED:
        raise ValueError("model must not be traced already.")
    if any(module._compiled_call_impl is not None for module in model.modules()):
        raise ValueError("model must not be compiled: its steps could not be seen.")


def check_numbers(name: str, numbers: Collection[int] | None, count: int | None) -> None:
    allowed = "0 or more" if count is None else f"from 0 to {count - 1}"
    if numbers is not None and not all(number >= 0 and (count is None or number < count) for number in numbers):
        raise ValueError(f"{name} must be {allowed}, got {list(numbers)}.")


class Taps:
    """Hooks and replaced methods that pass values on to a recorder, until `on_exit` takes them away."""

    def __init__(self, record: Recorder, on_exit: ExitStack):
        self.record, self.on_exit = record, on_exit

    def put(self, path: str, value: Tensor, layer: int | None = None) -> None:
        if self.record.wants(layer):
            self.record(path, value)

    def replace(self, module: nn.Module, method: str, replacement: Callable) -> Callable:
        """Put a function in the place of a method, which is returned."""
        original = getattr(module, method)
        setattr(module, method, replacement)
        self.on_exit.callback(delattr, module, method)
        return original

    def after(self, module: nn.Module, tap: Callable[[Any, Any], None]) -> None:
        """Call `tap(inputs, outputs)` after each call of the module."""
        hook = module.register_forward_hook(lambda _, inputs, outputs: tap(inputs, outputs))
        self.on_exit.callback(hook.remove)

    def outputs(self, module: nn.Module, path: str, layer: int | None = None) -> None:
        """Record what the module returns."""
        self.after(module, lambda _, outputs: self.put(path, outputs, layer))

    def stack(self, name: str, stack: Any) -> None:
        self.embedding(name, stack)
        for index, layer in enumerate(stack.layers):
            self.block(f"{name}.layers.{index}", index, layer)
        if isinstance(stack.layer_norm, nn.LayerNorm):
            self.norm(f"{name}.final", stack.layer_norm)
        self.after(stack, lambda _, outputs: self.put(f"{name}.output", outputs[0]))

    def embedding(self, name: str, stack: Any) -> None:
        """Token ids, and what becomes of them before the first block (paper 3.4 and 3.5)."""

        def look_up(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
            self.record.start(name)
            if input_ids is not None:
                self.put(f"{name}.embedding.ids", input_ids)
            return look_up_untraced(input_ids, inputs_embeds)

        def embed(inputs_embeds: Tensor, start: int | Tensor, end: int | None) -> Tensor:
            self.put(f"{name}.embedding.token", inputs_embeds)
            self.put(f"{name}.embedding.scaled", inputs_embeds * stack.embed_scale)
            summed = embed_untraced(inputs_embeds, start, end)
            self.put(f"{name}.embedding.sum", summed)
            return summed

        look_up_untraced = self.replace(stack, "look_up", look_up)
        embed_untraced = self.replace(stack, "embed", embed)
        if stack.embed_positions is not None:
            self.outputs(stack.embed_positions, f"{name}.embedding.position")

    def block(self, path: str, index: int, block: Any) -> None:
        """The sub-layers of a block, and "Add & Norm" around each (paper Figure 1)."""
        names = {"self_attn_layer_norm": "self_attn", "encoder_attn_layer_norm": "encoder_attn"}
        names["final_layer_norm"] = "ffn"
        sublayers = {getattr(block, norm): name for norm, name in names.items() if hasattr(block, norm)}
        norm_first = block.config.norm_order == "pre"

        def add_and_norm(states: Tensor, norm: nn.LayerNorm, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
            outputs = add_and_norm_untraced(states, norm, sublayer)
            if norm_first:
                self.put(f"{path}.{sublayers[norm]}.residual", outputs, index)
            return outputs

        add_and_norm_untraced = self.replace(block, "add_and_norm", add_and_norm)
        for norm, name in sublayers.items():
            self.norm(f"{path}.{name}", norm, index, of_residual=not norm_first)
            if name != "ffn":
                self.attention(f"{path}.{name}", index, getattr(block, name))
        self.outputs(block.fc1, f"{path}.ffn.inner", index)
        self.outputs(block.activation_fn, f"{path}.ffn.activation", index)
        self.outputs(block.fc2, f"{path}.ffn.output", index)

    def norm(self, path: str, norm: nn.LayerNorm, layer: int | None = None, of_residual: bool = False) -> None:
        """What a layer norm is made of; in the paper's order, its input is the sum of the residual connection."""

        def tap(inputs: Any, outputs: Tensor) -> None:
            if not self.record.wants(layer):
                return
            (states,) = inputs
            if of_residual:
                self.put(f"{path}.residual", states, layer)
            states = states.to(torch.promote_types(states.dtype, torch.float32))
            self.put(f"{path}.mean", states.mean(-1), layer)
            self.put(f"{path}.variance", states.var(-1, correction=0), layer)
            self.put(f"{path}.layer_norm", outputs, layer)

        self.after(norm, tap)

    def attention(self, path: str, layer: int, attention: Any) -> None:
        """The heads one by one, and what becomes of them (paper 3.2.2)."""
        tap = AttentionTap(path, layer, self)
        AttentionTap.of[attention] = tap
        self.on_exit.callback(AttentionTap.of.pop, attention)
        hook = attention.register_forward_pre_hook(tap.note_queries, with_kwargs=True)
        self.on_exit.callback(hook.remove)
        self.after(attention.out_proj, tap.output_projection)

    def output_layer(self, _: Any, logits: Tensor) -> None:
        """From logits to a token (paper 3.4)."""
        if not self.record.wants():
            return
        probabilities = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        self.put("logits", logits)
        self.put("probabilities", probabilities)
        self.put("choice", probabilities.argmax(-1))


class AttentionTap:
    """Records the heads of one attention module."""

    of: "WeakKeyDictionary[nn.Module, AttentionTap]" = WeakKeyDictionary()  # those of a trace under way

    def __init__(self, path: str, layer: int, taps: Taps):
        self.path, self.layer, self.taps = path, layer, taps
        self.batch = self.query_len = 0

    def note_queries(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Rows that share a source attend side by side: how many there are is known before."""
        states = args[0] if args else kwargs["hidden_states"]
        self.batch, self.query_len = states.shape[:2]

    def heads(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scale: float,
        output: Tensor,
        weights: Tensor,
    ) -> None:
        """Every step of scaled dot-product attention (paper 3.2.1), `[sources, heads, …]`, head by head."""
        if not self.taps.record.wants(self.layer):
            return
        scores = torch.matmul(query, key.transpose(-1, -2))
        seen = scores.new_zeros(()) if mask is None else mask
        by_query = {
            "query": query,
            "scores": scores,
            "scaled_scores": scores * scale,
            "mask": seen.expand(len(scores), scores.shape[1], *scores.shape[2:]),
            "weights": weights,
            "output": output.transpose(1, 2),
        }
        rows = {name: ungroup_weights(states, self.batch, self.query_len) for name, states in by_query.items()}
        rows = {"query": rows.pop("query"), "key": key, "value": value} | rows
        for head in self.taps.record.heads(query.shape[1]):
            for name, states in rows.items():
                self.taps.put(f"{self.path}.head.{head}.{name}", states[:, head], self.layer)

    def output_projection(self, inputs: Any, outputs: Tensor) -> None:
        for name, states in {"concatenated": inputs[0], "output": outputs}.items():
            self.taps.put(f"{self.path}.{name}", states.reshape(self.batch, self.query_len, -1), self.layer)


def traced_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float, **kwargs: Any
) -> tuple[Tensor, Tensor]:
    """The reference attention; a trace under way gets its steps."""
    output, weights = eager_attention_forward(module, query, key, value, mask, scaling, **kwargs)
    if module in AttentionTap.of:
        AttentionTap.of[module].heads(query, key, value, mask, scaling, output, weights)
    return output, weights


AttentionInterface.register(TRACED, traced_attention)
AttentionMaskInterface.register(TRACED, eager_mask)
