"""Eager attention that passes its values to observers."""

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import eager_mask

from ..modeling_random_transformer import eager_attention_forward, ungroup_weights
from .observers import Observers

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
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float,
        dropout: float = 0.0,
        **_: Any,
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
        mask = scores.new_zeros(()) if attention_mask is None else attention_mask
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
        if not any(map(self.observers.replaces, paths)):
            return states
        ungrouped = self.ungroup(states) if by_query else states
        new = torch.stack([self.observers.replace(path, ungrouped[:, head]) for head, path in enumerate(paths)], dim=1)
        return new.unflatten(0, (len(states), -1)).transpose(1, 2).flatten(2, 3) if by_query else new

    def ungroup(self, states: Tensor) -> Tensor:
        """`[sources, heads, batch / sources · query_len, …]` → `[batch, heads, query_len, …]`."""
        return ungroup_weights(states, self.batch, self.query_len)

    def record_heads(self, heads: dict[str, Tensor]) -> None:
        """Record the values of each head, `[sources, heads, …]`, head by head."""
        for head in range(heads["query"].shape[1]):
            for name, states in heads.items():
                path = f"{self.path}.head.{head}.{name}"
                if self.observers.uses(path):
                    ungrouped = states if name in ("key", "value") else self.ungroup(states)
                    self.observers.record(path, ungrouped[:, head])

    def pass_concatenated(self, _: nn.Module, args: tuple, _kwargs: dict[str, Any]) -> tuple[tuple, dict]:
        """Pass the concatenated outputs of the heads."""
        return (self.pass_states("concatenated", args[0]),), {}

    def pass_projected(self, _: Any, outputs: Tensor) -> Tensor:
        """Pass the projection of the concatenated outputs."""
        return self.pass_states("output", outputs)

    def pass_states(self, name: str, states: Tensor) -> Tensor:
        """Pass a value of all heads."""
        ungrouped = states.reshape(self.batch, self.query_len, -1)
        new = self.observers.pass_value(f"{self.path}.{name}", ungrouped)
        return states if new is ungrouped else new.reshape(states.shape)


def traced_attention(module: nn.Module, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
    """`eager_attention_forward` that passes its values to the observers of its module."""
    hooks = AttentionHooks.active.get(module)
    attend = eager_attention_forward if hooks is None else hooks.attend
    return attend(module, *args, **kwargs)


AttentionInterface.register(TRACED, traced_attention)
AttentionMaskInterface.register(TRACED, eager_mask)
