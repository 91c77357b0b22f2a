"""Passes intermediate values to a recorder or an intervention, with hooks and instrumented eager attention."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from operator import is_
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from ... import modeling_random_transformer as modeling
from ...base.errors import reraise_as_value_error
from ...ops_random_transformer import masked_softmax
from .paths import find_stacks, layer_norms

TRACED = "random_transformer_traced"  # name of the instrumented attention in transformers' registry
HEAD_VALUES = ("query", "key", "value", "scores", "scaled_scores", "mask", "weights", "output")


class AttentionHooks:
    """Passes the values of one attention module, `[batch, query_len, …]`, although rows may share a source."""

    # The hooks of each instrumented module.
    active: "WeakKeyDictionary[nn.Module, AttentionHooks]" = WeakKeyDictionary()

    def __init__(self, path: str, pass_value: Callable[[str, Tensor], Tensor]):
        self.path = path
        self.pass_value = pass_value
        self.batch = self.query_len = 0

    def save_query_shape(self, inputs: tuple) -> None:
        """Save the shape of the queries before queries that share a source are grouped."""
        self.batch, self.query_len = inputs[0].shape[:2]

    def attend(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float,
        dropout: float,
        **_: Any,
    ) -> tuple[Tensor, Tensor]:
        """Every step of `eager_attention_forward` (paper 3.2.1), bitwise equal. Rows are grouped by source."""
        query = self.pass_heads("query", query)
        key = self.pass_heads("key", key)
        value = self.pass_heads("value", value)
        scores = torch.matmul(query, key.transpose(-1, -2))
        scores = self.pass_heads("scores", scores)
        scaled = self.pass_heads("scaled_scores", scores * scaling)
        if attention_mask is None:
            attention_mask = scaled.new_zeros(())
        mask = self.pass_heads("mask", attention_mask.expand(scaled.shape))
        weights = masked_softmax(scaled, mask).to(query.dtype)
        weights = self.pass_heads("weights", weights)
        dropped = nn.functional.dropout(weights, p=dropout, training=module.training)
        outputs = dropped @ value
        outputs = self.pass_heads("output", outputs)
        return outputs.transpose(1, 2), weights

    def pass_heads(self, name: str, states: Tensor) -> Tensor:
        """Pass a value of the heads, `[sources, heads, …]`, head by head.

        All but keys and values are `[sources, heads, batch / sources · query_len, …]`, and are passed by row.
        """
        by_query = name not in ("key", "value")
        ungrouped = modeling.ungroup_weights(states, self.batch, self.query_len) if by_query else states
        heads = ungrouped.unbind(1)
        new_heads = [self.pass_value(f"{self.path}.head.{i}.{name}", head) for i, head in enumerate(heads)]
        if all(map(is_, new_heads, heads)):
            return states
        stacked = torch.stack(new_heads, dim=1)
        if not by_query:
            return stacked
        by_source = stacked.unflatten(0, (len(states), -1))
        return by_source.transpose(1, 2).flatten(2, 3)

    def pass_states(self, name: str, states: Tensor) -> Tensor:
        """Pass a value of all heads: the concatenation of their outputs, or its projection."""
        ungrouped = states.reshape(self.batch, self.query_len, -1)
        new = self.pass_value(f"{self.path}.{name}", ungrouped)
        return states if new is ungrouped else new.reshape(states.shape)


def traced_attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """`eager_attention_forward` that passes its values to the observers of its module."""
    hooks = AttentionHooks.active.get(module)
    attend = modeling.eager_attention_forward if hooks is None else hooks.attend
    return attend(module, *args, **kwargs)


AttentionInterface.register(TRACED, traced_attention)
AttentionMaskInterface.register(TRACED, eager_mask)


def check_attention() -> None:
    """Check that `AttentionHooks.attend` computes the same as `eager_attention_forward`, which may be edited.

    Raises:
        ValueError: they have other results.
    """
    hooks = AttentionHooks("", lambda _path, value: value)
    hooks.batch = 1
    hooks.query_len = 2
    states = torch.arange(24.0).sin()
    minimum = torch.finfo(states.dtype).min
    mask = torch.full((1, 1, 2, 2), minimum).triu(1)
    inputs = (nn.Identity(), *states.view(3, 1, 1, 2, 4), mask, 0.5, 0.0)
    with reraise_as_value_error("trace and intervene must compute eager_attention_forward (see extras/inspection)"):
        torch.testing.assert_close(hooks.attend(*inputs), modeling.eager_attention_forward(*inputs))


class Observer:
    """Base of what records or replaces values by their paths, and counts passes.

    Attributes:
        step: index of the current decoder pass, from 0. The encoder belongs to the decoder pass that follows it.
    """

    def __init__(self) -> None:
        self.step = 0
        self._started: set[str] = set()

    def start(self, stack: str) -> None:
        """Start a pass of a stack. A repeated pass, or an encoder pass after its decoder, starts a new step."""
        is_new_step = stack in self._started or "decoder" in self._started
        if is_new_step:
            self.step += 1
            self._started.clear()
        self._started.add(stack)

    def replace(self, path: str, value: Tensor) -> Tensor:  # noqa: ARG002
        """The new value at a path, the same object if it is not replaced at this step."""
        return value

    def receive(self, path: str, value: Tensor) -> None:
        """Record the value at a path if it is selected at this step."""


@contextmanager
def instrument(model: PreTrainedModel, observer: Observer) -> Iterator[list[str]]:
    """Pass the model's values to a recorder or an intervention within the `with` block.

    Blocks can be nested. All share one set of hooks, and recorders receive the replaced values.

    Yields:
        The paths of all values of one pass.

    Raises:
        ValueError: the model is not a Random Transformer, is compiled, or is a part of a traced model; or
            `eager_attention_forward` has been edited.
    """
    with ExitStack() as on_exit:
        hooks = HookManager.active.get(model)
        if hooks is None:
            hooks = install_hooks(model, on_exit)
        hooks.observers.append(observer)
        on_exit.callback(hooks.observers.remove, observer)
        yield hooks.paths


def install_hooks(model: PreTrainedModel, on_exit: ExitStack) -> "HookManager":
    """Install the hooks of all values; `on_exit` removes them."""
    stacks = find_stacks(model)
    check_attention()
    if model.config._attn_implementation == TRACED:
        raise ValueError("model must not be part of a model that is traced already.")
    is_compiled = any(module._compiled_call_impl is not None for module in model.modules())
    if is_compiled:
        raise ValueError("model must not be compiled, since hooks would not run.")
    hooks = HookManager(on_exit)
    HookManager.active[model] = hooks
    on_exit.callback(HookManager.active.pop, model)
    previous = model.config._attn_implementation
    model.config._attn_implementation = TRACED
    on_exit.callback(setattr, model.config, "_attn_implementation", previous)
    for name, stack in stacks.items():
        hooks.hook_stack(name, stack)
    output_layer = getattr(model, "lm_head", None)
    if output_layer is not None:
        hooks.add_hook(output_layer, hooks.pass_output_layer)
        hooks.paths += ["logits", "probabilities", "choice"]
    return hooks


class HookManager:
    """Installs hooks and wrapped methods that pass values to observers; `on_exit` removes them."""

    active: "WeakKeyDictionary[nn.Module, HookManager]" = WeakKeyDictionary()  # the hooks of each model

    def __init__(self, on_exit: ExitStack):
        self.on_exit = on_exit
        self.observers: list[Observer] = []
        self.paths: list[str] = []  # paths of all values of one pass

    def pass_value(self, path: str, value: Tensor) -> Tensor:
        """The value after all interventions, which is recorded; the same object if there are none."""
        for observer in self.observers:
            value = observer.replace(path, value)
        for observer in self.observers:
            observer.receive(path, value)
        return value

    def add_paths(self, prefix: str, *names: str) -> None:
        self.paths += [f"{prefix}.{name}" for name in names]

    def add_hook(self, module: nn.Module, hook: Callable[..., Any], before: bool = False) -> None:
        """Call a hook with the inputs and outputs of each call of the module, but not of its copies.

        With `before`, it is called with the inputs. What it returns replaces the outputs or the inputs, unless `None`.
        """

        def unless_copied(called: nn.Module, *values: Any) -> Any:
            return hook(*values) if called is module else None

        register = module.register_forward_pre_hook if before else module.register_forward_hook
        self.on_exit.callback(register(unless_copied).remove)

    def hook_output(self, module: nn.Module, path: str) -> None:
        """Pass what the module returns."""
        self.paths.append(path)
        self.add_hook(module, lambda _, outputs: self.pass_value(path, outputs))

    def hook_stack(self, name: str, stack: Any) -> None:
        """Pass the values of an encoder or a decoder."""
        self.hook_embedding(name, stack)
        for index, layer in enumerate(stack.layers):
            self.hook_layer(f"{name}.layers.{index}", layer)
        if isinstance(stack.layer_norm, nn.LayerNorm):
            self.hook_norm(f"{name}.final", stack.layer_norm)
        self.hook_output(stack.layer_norm, f"{name}.output")

    def hook_embedding(self, name: str, stack: Any) -> None:
        """Pass token ids and their embeddings up to the first layer's input (paper 3.4 and 3.5)."""

        def embed(self_: Any, tokens: Tensor, *positions: Any, **options: Any) -> Tensor:
            if self_ is not stack:  # a copy
                return type(self_).embed(self_, tokens, *positions, **options)
            for observer in self.observers:
                observer.start(name)
            if not tokens.is_floating_point():
                tokens = self.pass_value(f"{name}.embedding.ids", tokens)
            rows = stack.look_up(tokens)
            rows = self.pass_value(f"{name}.embedding.token", rows)
            scale = stack.embed_scale
            scaled = self.pass_value(f"{name}.embedding.scaled", rows * scale)
            stack.embed_scale = 1.0  # the rows are scaled already
            try:
                summed = type(stack).embed(stack, scaled, *positions, **options)
            finally:
                stack.embed_scale = scale
            return self.pass_value(f"{name}.embedding.sum", summed)

        self.add_paths(f"{name}.embedding", "ids", "token", "scaled", "sum")
        stack.embed = MethodType(embed, stack)  # deep copies of the stack bind the function to themselves
        self.on_exit.callback(delattr, stack, "embed")
        if stack.embed_positions is not None:
            self.hook_output(stack.embed_positions, f"{name}.embedding.position")

    def hook_layer(self, path: str, layer: Any) -> None:
        """Pass the values of the sub-layers, and of "Add & Norm" around each (paper Figure 1)."""
        pre_norm = layer.config.norm_order == "pre"
        previous = None
        for name, norm in layer_norms(layer).items():
            # The input of a norm is the sum of a residual connection: this one's (post-norm) or the previous one's.
            summed = previous if pre_norm else name
            if summed:
                self.hook_residual(f"{path}.{summed}.residual", norm)
            self.hook_norm(f"{path}.{name}", norm)
            if name != "ffn":
                attention = getattr(layer, name)
                self.hook_attention(f"{path}.{name}", attention)
            previous = name
        if pre_norm:
            self.hook_output(layer, f"{path}.ffn.residual")
        self.hook_output(layer.fc1, f"{path}.ffn.inner")
        self.hook_output(layer.activation_fn, f"{path}.ffn.activation")
        self.hook_output(layer.fc2, f"{path}.ffn.output")

    def hook_residual(self, path: str, norm: nn.LayerNorm) -> None:
        """Pass the sum of a residual connection, which is the input of a layer norm."""

        def hook(inputs: tuple) -> None:
            (states,) = inputs
            copied = states.clone()
            new = self.pass_value(path, copied)
            if new is not copied:
                states.copy_(new)  # in place: with pre-norm, the next residual connection uses the sum again

        self.paths.append(path)
        self.add_hook(norm, hook, before=True)

    def hook_norm(self, path: str, norm: nn.LayerNorm) -> None:
        """Pass mean, variance and output of a layer norm."""

        def hook(inputs: Any, outputs: Tensor) -> Tensor:
            (states,) = inputs
            states = states.to(torch.promote_types(states.dtype, torch.float32))
            mean = states.mean(-1)
            variance = states.var(-1, correction=0)
            new_mean = self.pass_value(f"{path}.mean", mean)
            new_variance = self.pass_value(f"{path}.variance", variance)
            if new_mean is not mean or new_variance is not variance:
                centered = states - new_mean[..., None]
                deviation = (new_variance[..., None] + norm.eps).sqrt()
                normalized = centered / deviation
                outputs = (normalized * norm.weight + norm.bias).to(outputs.dtype)
            return self.pass_value(f"{path}.layer_norm", outputs)

        self.add_paths(path, "mean", "variance", "layer_norm")
        self.add_hook(norm, hook)

    def hook_attention(self, path: str, attention: Any) -> None:
        """Pass the values of each head, and the concatenation and projection of all heads (paper 3.2.2)."""
        for head in range(attention.config.num_heads):
            self.add_paths(f"{path}.head.{head}", *HEAD_VALUES)
        self.add_paths(path, "concatenated", "output")
        hooks = AttentionHooks(path, self.pass_value)

        AttentionHooks.active[attention] = hooks
        self.on_exit.callback(AttentionHooks.active.pop, attention)
        self.add_hook(attention, hooks.save_query_shape, before=True)
        self.add_hook(attention.out_proj, lambda inputs: hooks.pass_states("concatenated", *inputs), before=True)
        self.add_hook(attention.out_proj, lambda _, outputs: hooks.pass_states("output", outputs))

    def pass_output_layer(self, _: Any, logits: Tensor) -> Tensor:
        """Pass logits, probabilities and the most probable token (paper 3.4).

        New probabilities change the logits to their logarithms, and a new token makes it the only possible one.
        """
        logits = self.pass_value("logits", logits)
        dtype = logits.dtype
        vocab_size = logits.shape[-1]
        probabilities = logits.softmax(-1, dtype=torch.promote_types(dtype, torch.float32))
        new_probabilities = self.pass_value("probabilities", probabilities)
        if new_probabilities is not probabilities:
            tiny = torch.finfo(new_probabilities.dtype).tiny
            logits = new_probabilities.clamp(min=tiny).log().to(dtype)
        most_probable = new_probabilities.argmax(-1)
        choice = self.pass_value("choice", most_probable)
        if choice is most_probable:
            return logits
        if choice.min() < 0 or choice.max() >= vocab_size:
            raise ValueError(f"the value of 'choice' must be ids below {vocab_size}, got {choice.tolist()}.")
        minimum = torch.finfo(dtype).min
        lowest = torch.full_like(logits, minimum)
        return lowest.scatter(-1, choice[..., None], 0.0)
