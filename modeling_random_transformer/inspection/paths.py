"""Paths of the values of a model."""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from transformers import PreTrainedModel

HEAD_VALUES = ("query", "key", "value", "scores", "scaled_scores", "mask", "weights", "output")
NORM_VALUES = ("mean", "variance", "layer_norm")


def step_and_path(path: str) -> tuple[int | None, str]:
    """The number of `step.N.` at the start of a path, `None` without it, and the rest of the path.

    Raises:
        ValueError: `N` is not an integer.
    """
    if not path.startswith("step."):
        return None, path
    _, index, inner_path = f"{path}..".split(".", maxsplit=2)
    if not index.isdecimal():
        raise ValueError(f"paths must be of the form step.N.path with an integer N, got {path!r}.")
    return int(index), inner_path.removesuffix("..")


@lru_cache(maxsize=10_000)
def layer_and_head(path: str) -> tuple[int | None, int | None]:
    """The indices of layer and head in a path, `None` where it has none."""
    layer, head = re.search(r"\.layers\.(\d+)", path), re.search(r"\.head\.(\d+)", path)
    return layer and int(layer[1]), head and int(head[1])


def find_stacks(model: PreTrainedModel) -> dict[str, Any]:
    """The model's stacks, by `"encoder"` and `"decoder"`.

    Raises:
        ValueError: there are none.
    """
    stacks = [module for module in model.modules() if hasattr(module, "embed_positions")]
    if not stacks:
        raise ValueError(f"model must be a Random Transformer, got {type(model).__name__}.")
    return {"decoder" if stack.layers[0].self_attn.is_causal else "encoder": stack for stack in stacks}


def value_paths(model: PreTrainedModel) -> Iterator[str]:
    """The paths of all values of one pass, without `step.N.`."""
    for name, stack in find_stacks(model).items():
        embedding = ["ids", "token", "scaled", "position", "sum"]
        if stack.embed_positions is None:
            embedding.remove("position")
        yield from (f"{name}.embedding.{value}" for value in embedding)
        for index, layer in enumerate(stack.layers):
            yield from layer_paths(f"{name}.layers.{index}", layer)
        if model.config.final_layer_norm:
            yield from (f"{name}.final.{value}" for value in NORM_VALUES)
        yield f"{name}.output"
    if getattr(model, "lm_head", None) is not None:
        yield from ("logits", "probabilities", "choice")


def layer_paths(path: str, layer: Any) -> Iterator[str]:
    """The paths of a layer's values."""
    attentions = [name for name in ("self_attn", "encoder_attn") if hasattr(layer, name)]
    for name in attentions:
        heads = range(layer.config.num_heads)
        yield from (f"{path}.{name}.head.{head}.{value}" for head in heads for value in HEAD_VALUES)
        yield from (f"{path}.{name}.{value}" for value in ("concatenated", "output"))
    yield from (f"{path}.ffn.{value}" for value in ("inner", "activation", "output"))
    for name in (*attentions, "ffn"):
        yield from (f"{path}.{name}.{value}" for value in ("residual", *NORM_VALUES))
