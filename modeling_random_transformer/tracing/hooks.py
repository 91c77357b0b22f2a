"""Passes intermediate values to a recorder or an intervention, with hooks and instrumented eager attention."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from ..modeling_random_transformer import eager_attention_forward, ungroup_weights
from .observers import Observer, find_stacks

TRACED = "random_transformer_traced"  # name of the instrumented attention in transformers' registry


@contextmanager
def instrument(model: PreTrainedModel, observer: Observer) -> Iterator[None]:
    """Pass the model's values to a recorder or an intervention within the `with` block.

    Blocks can be nested. All share one set of hooks, and the recorder receives the replaced values.

    Raises:
        ValueError: the model is not a Random Transformer, is compiled, or already has a recorder.
    """
    with ExitStack() as on_exit:
        hooks = HookManager.active.get(model)
        if hooks is None:
            hooks = install_hooks(model, on_exit)
        elif observer.only_one and any(other.only_one for other in hooks.observers):
            raise ValueError("model must not be traced already.")
        hooks.observers.append(observer)
        on_exit.callback(hooks.observers.remove, observer)
        yield


def install_hooks(model: PreTrainedModel, on_exit: ExitStack) -> "HookManager":
    """Install the hooks of all values; `on_exit` removes them."""
    stacks = find_stacks(model)
    check_model(model)
    hooks = HookManager(on_exit)
    HookManager.active[model] = hooks
    on_exit.callback(HookManager.active.pop, model)
    on_exit.callback(setattr, model.config, "_attn_implementation", model.config._attn_implementation)
    model.config._attn_implementation = TRACED
    for name, stack in stacks.items():
        hooks.hook_stack(name, stack)
    if isinstance(getattr(model, "lm_head", None), nn.Module):
        hooks.add_forward_hook(model.lm_head, hooks.pass_output_layer)
    return hooks


def check_model(model: PreTrainedModel) -> None:
    """Raise a ValueError if the model is compiled or already instrumented."""
    if model.config._attn_implementation == TRACED:
        raise ValueError("model must not be part of a model that is traced already.")
    if any(module._compiled_call_impl is not None for module in model.modules()):
        raise ValueError("model must not be compiled, since hooks would not run.")


class HookManager:
    """Installs hooks and wrapped methods that pass values to observers; `on_exit` removes them."""

    active: "WeakKeyDictionary[nn.Module, HookManager]" = WeakKeyDictionary()  # by model

    def __init__(self, on_exit: ExitStack):
        self.on_exit = on_exit
        self.observers: list[Observer] = []

    def replaces(self, path: str) -> bool:
        """Whether an intervention replaces the value at this path."""
        return any(observer.replaces(path) for observer in self.observers)

    def uses(self, path: str) -> bool:
        """Whether an observer receives the value at this path."""
        return any(observer.replaces(path) or observer.selects(path) for observer in self.observers)

    def replace(self, path: str, value: Tensor) -> Tensor:
        """The value after all interventions, the same object if there are none."""
        for observer in self.observers:
            if observer.replaces(path):
                value = observer.replace(path, value)
        return value

    def record(self, path: str, value: Tensor) -> None:
        for observer in self.observers:
            if observer.selects(path):
                observer.record(path, value)

    def pass_value(self, path: str, value: Tensor) -> Tensor:
        """Replace a value if required, and record it."""
        value = self.replace(path, value)
        self.record(path, value)
        return value

    def replace_method(self, module: nn.Module, name: str, replacement: Callable) -> Callable:
        """Replace a method of one instance and return the original."""
        original = getattr(module, name)
        setattr(module, name, replacement)
        self.on_exit.callback(delattr, module, name)
        return original

    def add_forward_hook(self, module: nn.Module, hook: Callable[[Any, Any], Any]) -> None:
        """Replace the output of each call of the module by `hook(inputs, outputs)`."""
        handle = module.register_forward_hook(lambda _, inputs, outputs: hook(inputs, outputs))
        self.on_exit.callback(handle.remove)

    def add_forward_pre_hook(self, module: nn.Module, hook: Callable[[nn.Module, tuple, dict[str, Any]], Any]) -> None:
        """Call `hook(module, args, kwargs)` before each call of the module; it may return new arguments."""
        handle = module.register_forward_pre_hook(hook, with_kwargs=True)
        self.on_exit.callback(handle.remove)

    def hook_output(self, module: nn.Module, path: str) -> None:
        """Pass what the module returns."""
        self.add_forward_hook(module, lambda _, outputs: self.pass_value(path, outputs))

    def hook_stack(self, name: str, stack: Any) -> None:
        """Pass the values of an encoder or a decoder."""
        self.hook_embedding(name, stack)
        for index, layer in enumerate(stack.layers):
            self.hook_layer(f"{name}.layers.{index}", layer)
        if isinstance(stack.layer_norm, nn.LayerNorm):
            self.hook_norm(f"{name}.final", stack.layer_norm)
        self.add_forward_hook(stack, lambda _, outputs: self.pass_first(f"{name}.output", outputs))

    def pass_first(self, path: str, outputs: Any) -> Any:
        """Pass the first of several outputs."""
        states = self.pass_value(path, outputs[0])
        if states is outputs[0]:
            return outputs
        if isinstance(outputs, tuple):
            return (states, *outputs[1:])
        outputs["last_hidden_state"] = states
        return outputs

    def hook_embedding(self, name: str, stack: Any) -> None:
        """Pass token ids and their embeddings up to the first layer's input (paper 3.4 and 3.5)."""

        def embed_ids(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
            for observer in self.observers:
                observer.start(name)
            if input_ids is not None:
                input_ids = self.pass_value(f"{name}.embedding.ids", input_ids)
            return original_embed_ids(input_ids, inputs_embeds)

        def embed(inputs_embeds: Tensor, start: int | Tensor, end: int | None) -> Tensor:
            inputs_embeds = self.pass_value(f"{name}.embedding.token", inputs_embeds)
            computed = inputs_embeds * stack.embed_scale
            scaled = self.pass_value(f"{name}.embedding.scaled", computed)
            if scaled is computed:
                summed = original_embed(inputs_embeds, start, end)
            else:
                with attribute(stack, "embed_scale", 1.0):
                    summed = original_embed(scaled, start, end)
            return self.pass_value(f"{name}.embedding.sum", summed)

        original_embed_ids = self.replace_method(stack, "embed_ids", embed_ids)
        original_embed = self.replace_method(stack, "embed", embed)
        if stack.embed_positions is not None:
            self.hook_output(stack.embed_positions, f"{name}.embedding.position")

    def hook_layer(self, path: str, layer: Any) -> None:
        """Pass the values of the sub-layers, and of "Add & Norm" around each (paper Figure 1)."""
        norms = {"self_attn": layer.self_attn_layer_norm}
        if hasattr(layer, "encoder_attn"):
            norms["encoder_attn"] = layer.encoder_attn_layer_norm
        norms["ffn"] = layer.final_layer_norm
        pre_norm, previous = layer.config.norm_order == "pre", None
        for name, norm in norms.items():
            # The input of a norm is the sum of a residual connection: this one's (post-norm) or the previous one's.
            summed = previous if pre_norm else name
            if summed:
                self.hook_residual(f"{path}.{summed}.residual", norm)
            self.hook_norm(f"{path}.{name}", norm)
            if name != "ffn":
                self.hook_attention(f"{path}.{name}", getattr(layer, name))
            previous = name
        if pre_norm:
            self.hook_output(layer, f"{path}.ffn.residual")
        self.hook_output(layer.fc1, f"{path}.ffn.inner")
        self.hook_output(layer.activation_fn, f"{path}.ffn.activation")
        self.hook_output(layer.fc2, f"{path}.ffn.output")

    def hook_residual(self, path: str, norm: nn.LayerNorm) -> None:
        """Pass the sum of a residual connection, which is the input of a layer norm."""

        def hook(_module: nn.Module, args: tuple, _kwargs: dict[str, Any]) -> None:
            (states,) = args
            if self.replaces(path):
                # In place, since pre-norm uses the sum again in the next residual connection.
                states.copy_(self.replace(path, states.clone()))
            self.record(path, states)

        self.add_forward_pre_hook(norm, hook)

    def hook_norm(self, path: str, norm: nn.LayerNorm) -> None:
        """Pass mean, variance and output of a layer norm."""

        def hook(inputs: Any, outputs: Tensor) -> Tensor:
            if self.uses(f"{path}.mean") or self.uses(f"{path}.variance"):
                (states,) = inputs
                states = states.to(torch.promote_types(states.dtype, torch.float32))
                statistics = {"mean": states.mean(-1), "variance": states.var(-1, correction=0)}
                new = {name: self.pass_value(f"{path}.{name}", value) for name, value in statistics.items()}
                if any(new[name] is not value for name, value in statistics.items()):
                    deviation = (states - new["mean"][..., None]) / (new["variance"][..., None] + norm.eps).sqrt()
                    outputs = (deviation * norm.weight + norm.bias).to(outputs.dtype)
            return self.pass_value(f"{path}.layer_norm", outputs)

        self.add_forward_hook(norm, hook)

    def hook_attention(self, path: str, attention: Any) -> None:
        """Pass the values of each head, and the concatenation and projection of all heads (paper 3.2.2)."""
        hooks = AttentionHooks(path, self)
        AttentionHooks.active[attention] = hooks
        self.on_exit.callback(AttentionHooks.active.pop, attention)
        self.add_forward_pre_hook(attention, hooks.save_query_shape)
        self.add_forward_pre_hook(attention.out_proj, hooks.pass_concatenated)
        self.add_forward_hook(attention.out_proj, hooks.pass_projected)

    def pass_output_layer(self, _: Any, logits: Tensor) -> Tensor:
        """Pass logits, probabilities and the most probable token (paper 3.4).

        New probabilities change the logits to their logarithms, and a new token makes it the only possible one.
        """
        logits = self.pass_value("logits", logits)
        if self.uses("probabilities") or self.uses("choice"):
            computed = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
            probabilities = self.pass_value("probabilities", computed)
            if probabilities is not computed:
                logits = probabilities.clamp(min=torch.finfo(probabilities.dtype).tiny).log().to(logits.dtype)
            most_probable = probabilities.argmax(-1)
            choice = self.pass_value("choice", most_probable)
            if choice is not most_probable:
                lowest = torch.full_like(logits, torch.finfo(logits.dtype).min)
                logits = lowest.scatter(-1, choice[..., None], 0.0)
        return logits


@contextmanager
def attribute(instance: object, name: str, value: Any) -> Iterator[None]:
    """Set an attribute within the `with` block."""
    previous = getattr(instance, name)
    setattr(instance, name, value)
    try:
        yield
    finally:
        setattr(instance, name, previous)


class AttentionHooks:
    """Passes the values of one attention module, `[batch, query_len, …]`, although rows may share a source."""

    active: "WeakKeyDictionary[nn.Module, AttentionHooks]" = WeakKeyDictionary()  # of the instrumented modules

    def __init__(self, path: str, manager: HookManager):
        self.path, self.manager = path, manager
        self.batch = self.query_len = 0

    def save_query_shape(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Save the shape of the queries before those that share a source are grouped."""
        states = args[0] if args else kwargs["hidden_states"]
        self.batch, self.query_len = states.shape[:2]

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        scaling: float,
        dropout: float,
    ) -> tuple[Tensor, Tensor]:
        """Every step of scaled dot-product attention (paper 3.2.1), bitwise equal to `eager_attention_forward`.

        Shapes are those of `eager_attention_forward`, with `[sources, heads, …]`.
        """
        heads = {
            "query": self.replace("query", query),
            "key": self.replace("key", key, by_query=False),
            "value": self.replace("value", value, by_query=False),
        }
        heads["scores"] = self.replace("scores", torch.matmul(heads["query"], heads["key"].transpose(-1, -2)))
        heads["scaled_scores"] = scores = self.replace("scaled_scores", heads["scores"] * scaling)
        mask = scores.new_zeros(()) if mask is None else mask
        mask = mask.expand(len(scores), scores.shape[1], *scores.shape[2:])
        heads["mask"] = mask = self.replace("mask", mask)
        scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
        weights = (scores + mask).softmax(dim=-1).masked_fill(mask <= torch.finfo(mask.dtype).min, 0.0)
        heads["weights"] = weights = self.replace("weights", weights.to(query.dtype))
        outputs = nn.functional.dropout(weights, p=dropout, training=module.training) @ heads["value"]
        heads["output"] = outputs = self.replace("output", outputs)
        self.record_heads(heads)
        return outputs.transpose(1, 2), weights

    def replace(self, name: str, states: Tensor, by_query: bool = True) -> Tensor:
        """Replace a value of the heads, `[sources, heads, …]`, if an intervention requires it."""
        paths = [f"{self.path}.head.{head}.{name}" for head in range(states.shape[1])]
        if not any(map(self.manager.replaces, paths)):
            return states
        ungrouped = self.ungroup(states) if by_query else states
        new = torch.stack([self.manager.replace(path, ungrouped[:, head]) for head, path in enumerate(paths)], dim=1)
        return new.unflatten(0, (len(states), -1)).transpose(1, 2).flatten(2, 3) if by_query else new

    def ungroup(self, states: Tensor) -> Tensor:
        """`[sources, heads, batch / sources · query_len, …]` → `[batch, heads, query_len, …]`."""
        return ungroup_weights(states, self.batch, self.query_len)

    def record_heads(self, heads: dict[str, Tensor]) -> None:
        """Record the values of each head, `[sources, heads, …]`, head by head."""
        for head in range(heads["query"].shape[1]):
            for name, states in heads.items():
                path = f"{self.path}.head.{head}.{name}"
                if self.manager.uses(path):
                    ungrouped = states if name in ("key", "value") else self.ungroup(states)
                    self.manager.record(path, ungrouped[:, head])

    def pass_concatenated(self, _: nn.Module, args: tuple, _kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        """Pass the concatenated outputs of the heads."""
        return (self.pass_states("concatenated", args[0]),), {}

    def pass_projected(self, _: Any, outputs: Tensor) -> Tensor:
        """Pass the projection of the concatenated outputs."""
        return self.pass_states("output", outputs)

    def pass_states(self, name: str, states: Tensor) -> Tensor:
        """Pass a value of all heads."""
        ungrouped = states.reshape(self.batch, self.query_len, -1)
        new = self.manager.pass_value(f"{self.path}.{name}", ungrouped)
        return states if new is ungrouped else new.reshape(states.shape)


def traced_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """Eager attention that passes its values to the observers of its module."""
    if module in AttentionHooks.active:
        return AttentionHooks.active[module].attend(module, query, key, value, mask, scaling, dropout)
    return eager_attention_forward(module, query, key, value, mask, scaling, dropout, **kwargs)


AttentionInterface.register(TRACED, traced_attention)
AttentionMaskInterface.register(TRACED, eager_mask)
