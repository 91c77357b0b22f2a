"""Paths of the values of a model, and their descriptions: formula and section of "Attention Is All You Need"."""

import re
import tomllib
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor
from transformers import PreTrainedModel

SUB_LAYERS = {  # name in a path, by the name of its layer norm
    "self_attn_layer_norm": "self_attn",
    "encoder_attn_layer_norm": "encoder_attn",
    "final_layer_norm": "ffn",
}


def step_and_path(path: str) -> tuple[int | None, str]:
    """The number of `step.N.` at the start of a path, `None` without it, and the rest of the path.

    Raises:
        ValueError: `N` is not an integer.
    """
    if not path.startswith("step."):
        return None, path
    numbered = re.fullmatch(r"step\.(\d+)\.(.+)", path)
    if numbered is None:
        raise ValueError(f"paths must be of the form step.N.path with an integer N, got {path!r}.")
    return int(numbered[1]), numbered[2]


@lru_cache(maxsize=10_000)
def layer_and_head(path: str) -> tuple[int | None, int | None]:
    """The indices of layer and head in a path, `None` where it has none."""
    layer = re.search(r"\.layers\.(\d+)", path)
    head = re.search(r"\.head\.(\d+)", path)
    return layer and int(layer[1]), head and int(head[1])


def find_stacks(model: PreTrainedModel) -> dict[str, Any]:
    """The model's stacks, by `"encoder"` and `"decoder"`.

    Raises:
        ValueError: there are none.
    """
    stacks: dict[str, Any] = {}
    for module in model.modules():
        if hasattr(module, "embed_positions"):
            is_decoder = module.layers[0].self_attn.is_causal
            stacks["decoder" if is_decoder else "encoder"] = module
    if not stacks:
        raise ValueError(f"model must be a Random Transformer, got {type(model).__name__}.")
    return stacks


def layer_norms(layer: Any) -> dict[str, Any]:
    """The layer norm of each sub-layer of a layer, by the name of the sub-layer in a path."""
    return {name: getattr(layer, norm) for norm, name in SUB_LAYERS.items() if hasattr(layer, norm)}


class Step(NamedTuple):
    """A recorded value, described.

    Attributes:
        path: its name in the trace.
        shape: the tensor's shape.
        formula: how it is computed from earlier values; x is the input of the sub-layer.
        section: section of the paper.
    """

    path: str
    shape: tuple[int, ...]
    formula: str
    section: str


@cache
def formulas() -> dict[str, tuple[str, str]]:
    """The formula and the section of the paper of each pattern of paths."""
    return tomllib.loads(Path(__file__).with_name("formulas.toml").read_text(encoding="utf-8"))


def describe(path: str, value: Tensor, config: Any) -> Step:
    """The description of a value, in a model of this configuration."""
    for pattern, (formula, section) in formulas().items():
        if fnmatchcase(path, pattern):
            return Step(path, tuple(value.shape), formula.format_map(placeholders(config)), section)
    raise KeyError(f"formulas.toml must have a formula for {path!r}.")


def placeholders(config: Any) -> dict[str, Any]:
    """The parts of formulas that depend on the configuration."""
    pre_norm = config.norm_order == "pre"
    parts = {
        "x": "layer_norm" if pre_norm else "x",
        "normed": "x" if pre_norm else "residual",
        "times_scale": f" · √{config.d_model}" if config.scale_embedding else "",
        "position": "a learned vector for each position",
        "plus_position": "" if config.position_embedding == "none" else " + position",
        "scaling": f" · {config.attention_scale:.6g}",
        "activation": f"{config.activation_function}(inner)",
        "eps": config.layer_norm_eps,
        "output_matrix": "embedding matrixᵀ" if config.tie_word_embeddings else "W_vocab",
        "b_vocab": " + b_vocab" if config.lm_head_bias else "",
    }
    for name in "QKVO":
        parts[f"b_{name}"] = f" + b_{name}" if config.attention_bias else ""
    if config.position_embedding == "sinusoidal":
        parts["position"] = f"sin and cos of pos / 10000^(2i/{config.d_model})"
    if config.attention_scale == config.d_k**-0.5:
        parts["scaling"] = f" / √{config.d_k}"
    if config.activation_function == "relu":
        parts["activation"] = "max(0, inner)"
    return parts
