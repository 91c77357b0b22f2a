"""Eager attention that passes its values to observers."""

from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from ..modeling_random_transformer import eager_attention_forward, ungroup_weights
from ..ops_random_transformer import masked_softmax
from .observers import Observers
from .paths import HEAD_VALUES

TRACED = "random_transformer_traced"  # name of the instrumented attention in transformers' registry


class AttentionHooks:
    """Passes the values of one attention module, `[batch, query_len, …]`, although rows may share a source."""

    active: "WeakKeyDictionary[nn.Module, AttentionHooks]" = WeakKeyDictionary()  # of the instrumented modules

    def __init__(self, path: str, observers: Observers):
        self.path, self.observers = path, observers
        self.batch = self.query_len = 0

    def save_query_shape(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Save the shape of the queries before those that share a source are grouped."""
        states = args[0] if args else kwargs["hidden_states"]
        self.batch, self.query_len = states.shape[:2]

    def attend(
        self, module: nn.Module, *projected: Tensor, mask: Tensor | None, scaling: float, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """Every step of `eager_attention_forward` (paper 3.2.1), bitwise equal. Rows are grouped by source."""
        query, key, value = (
            self.replace(name, states, by_query=name == "query")
            for name, states in zip(("query", "key", "value"), projected, strict=True)
        )
        scores = self.replace("scores", torch.matmul(query, key.transpose(-1, -2)))
        scaled = self.replace("scaled_scores", scores * scaling)
        mask = self.replace("mask", (scaled.new_zeros(()) if mask is None else mask).expand(scaled.shape))
        weights = self.replace("weights", masked_softmax(scaled, mask).to(projected[0].dtype))
        outputs = nn.functional.dropout(weights, p=dropout, training=module.training) @ value
        outputs = self.replace("output", outputs)
        values = (query, key, value, scores, scaled, mask, weights, outputs)
        self.record_heads(dict(zip(HEAD_VALUES, values, strict=True)))
        return outputs.transpose(1, 2), weights

    def replace(self, name: str, states: Tensor, by_query: bool = True) -> Tensor:
        """Replace a value of the heads, `[sources, heads, …]`, if an intervention requires it."""
        heads = (self.ungroup(states) if by_query else states).unbind(1)
        new = [self.observers.replace(f"{self.path}.head.{i}.{name}", head) for i, head in enumerate(heads)]
        if all(map(is_, new, heads)):
            return states
        stacked = torch.stack(new, dim=1)
        return stacked.unflatten(0, (len(states), -1)).transpose(1, 2).flatten(2, 3) if by_query else stacked

    def ungroup(self, states: Tensor) -> Tensor:
        """`[sources, heads, batch / sources · query_len, …]` → `[batch, heads, query_len, …]`."""
        return ungroup_weights(states, self.batch, self.query_len)

    def record_heads(self, values: dict[str, Tensor]) -> None:
        """Record the values of the heads, `[sources, heads, …]`, head by head."""
        values = {name: each if name in ("key", "value") else self.ungroup(each) for name, each in values.items()}
        for head in range(values["query"].shape[1]):
            for name, states in values.items():
                self.observers.record(f"{self.path}.head.{head}.{name}", states[:, head])

    def pass_states(self, name: str, states: Tensor) -> Tensor:
        """Pass a value of all heads: the concatenation of their outputs, or its projection."""
        ungrouped = states.reshape(self.batch, self.query_len, -1)
        new = self.observers.pass_value(f"{self.path}.{name}", ungrouped)
        return states if new is ungrouped else new.reshape(states.shape)


def traced_attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """`eager_attention_forward` that passes its values to the observers of its module."""
    hooks = AttentionHooks.active.get(module)
    if hooks is None:
        return eager_attention_forward(module, *args, **kwargs)
    *projected, mask = args
    return hooks.attend(module, *projected, mask=mask, scaling=kwargs["scaling"], dropout=kwargs["dropout"])


AttentionInterface.register(TRACED, traced_attention)
AttentionMaskInterface.register(TRACED, eager_mask)
