"""Eager attention that passes its values to observers."""

from collections.abc import Callable
from operator import is_
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from ..modeling_random_transformer import eager_attention_forward, ungroup_weights
from ..ops_random_transformer import masked_softmax

TRACED = "random_transformer_traced"  # name of the instrumented attention in transformers' registry
HEAD_VALUES = ("query", "key", "value", "scores", "scaled_scores", "mask", "weights", "output")


class AttentionHooks:
    """Passes the values of one attention module, `[batch, query_len, …]`, although rows may share a source."""

    active: "WeakKeyDictionary[nn.Module, AttentionHooks]" = WeakKeyDictionary()  # of the instrumented modules

    def __init__(self, path: str, pass_value: Callable[[str, Tensor], Tensor]):
        self.path, self.pass_value = path, pass_value
        self.batch = self.query_len = 0

    def save_query_shape(self, _: nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        """Save the shape of the queries before those that share a source are grouped."""
        states = args[0] if args else kwargs["hidden_states"]
        self.batch, self.query_len = states.shape[:2]

    def attend(
        self, module: nn.Module, *projected: Tensor, mask: Tensor | None, scaling: float, dropout: float
    ) -> tuple[Tensor, Tensor]:
        """Every step of `eager_attention_forward` (paper 3.2.1), bitwise equal. Rows are grouped by source."""
        query, key, value = map(self.pass_heads, ("query", "key", "value"), projected)
        scores = self.pass_heads("scores", torch.matmul(query, key.transpose(-1, -2)))
        scaled = self.pass_heads("scaled_scores", scores * scaling)
        mask = self.pass_heads("mask", (scaled.new_zeros(()) if mask is None else mask).expand(scaled.shape))
        weights = self.pass_heads("weights", masked_softmax(scaled, mask).to(query.dtype))
        outputs = nn.functional.dropout(weights, p=dropout, training=module.training) @ value
        return self.pass_heads("output", outputs).transpose(1, 2), weights

    def pass_heads(self, name: str, states: Tensor) -> Tensor:
        """Pass a value of the heads, `[sources, heads, …]`, head by head.

        All but keys and values are `[sources, heads, batch / sources · query_len, …]`, and are passed by row.
        """
        by_query = name not in ("key", "value")
        heads = (ungroup_weights(states, self.batch, self.query_len) if by_query else states).unbind(1)
        new = [self.pass_value(f"{self.path}.head.{i}.{name}", head) for i, head in enumerate(heads)]
        if all(map(is_, new, heads)):
            return states
        stacked = torch.stack(new, dim=1)
        return stacked.unflatten(0, (len(states), -1)).transpose(1, 2).flatten(2, 3) if by_query else stacked

    def pass_states(self, name: str, states: Tensor) -> Tensor:
        """Pass a value of all heads: the concatenation of their outputs, or its projection."""
        ungrouped = states.reshape(self.batch, self.query_len, -1)
        new = self.pass_value(f"{self.path}.{name}", ungrouped)
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
