"""What each part of the decoder adds to a logit, and what the output layer predicts after each sub-layer."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .paths import find_stacks, layer_norms


def logit_attribution(model: Any, recorded: Mapping[str, Tensor], tokens: Tensor) -> dict[str, Tensor]:
    """What each part of the decoder adds to the logits of some tokens (*direct logit attribution*).

    The residual connections add the outputs of all sub-layers (paper 3.1), and a head's part of an output is its
    product with its columns of W_O (3.2.2). A layer norm is linear once its variance is known, so the logits are a sum
    over the parts. A logit has a meaning only in comparison with others: the difference of the values of two tokens
    explains why one was preferred to the other.

    Args:
        model: a translation model or a language model.
        recorded: the `trace` of its forward pass, of all layers and heads.
        tokens: ids of `k` tokens for each position, `[batch, target_len, k]`.

    Returns:
        Values by part, `[batch, target_len, k]`; their sum is the logits. Parts are the paths of the embedding, the
        positions, the heads and the feed-forward networks in the trace, and `"biases"`.

    Raises:
        KeyError: a layer or a head was not recorded.
        ValueError: a projection is quantized or has an adapter, so that its weights are not what it computes.
    """
    for name, module in model.named_modules():
        if name.endswith(("lm_head", "out_proj")) and type(module) is not nn.Linear:
            raise ValueError(f"{name} must be nn.Linear (merge adapters, dequantize), got {type(module).__name__}.")
    rows = model.lm_head.weight[tokens]
    parts = sum_of(model, recorded).items()
    values = {part: torch.einsum("btd,btkd->btk", vector, rows.to(vector)) for part, vector in parts}
    if model.lm_head.bias is not None:
        values["biases"] = values["biases"] + model.lm_head.bias[tokens]
    return values


def logit_lens(model: Any, recorded: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The logits if the decoder ended after its embedding or after a sub-layer (the *logit lens*).

    Yields:
        The path of the embedding or the sub-layer in the trace, and logits `[batch, target_len, vocab_size]`.
    """
    stack = find_stacks(model)["decoder"]
    after = "layer_norm" if model.config.norm_order == "post" else "residual"
    paths = [f"decoder.layers.{i}.{name}" for i, layer in enumerate(stack.layers) for name in layer_norms(layer)]
    states = {path: recorded[f"{path}.{after}"] for path in paths}
    for path, state in {"decoder.embedding": recorded["decoder.embedding.sum"], **states}.items():
        yield path, model.lm_head(stack.layer_norm(state))


def sum_of(model: Any, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts whose sum is the decoder's output, each `[batch, target_len, d_model]`."""
    stack, config = find_stacks(model)["decoder"], model.config
    scaled, summed = recorded["decoder.embedding.scaled"], recorded["decoder.embedding.sum"]
    parts = {"decoder.embedding.token": scaled, "decoder.embedding.position": summed - scaled}
    parts["biases"] = torch.zeros_like(scaled)
    for index, layer in enumerate(stack.layers):
        for name, norm in layer_norms(layer).items():
            path = f"decoder.layers.{index}.{name}"
            if name == "ffn":
                parts[path] = recorded[f"{path}.output"]
            else:
                add_heads(parts, path, getattr(layer, name).out_proj, recorded, config)
            if config.norm_order == "post":
                normalize(parts, norm, recorded[f"{path}.variance"])
    if isinstance(stack.layer_norm, nn.LayerNorm):
        normalize(parts, stack.layer_norm, recorded["decoder.final.variance"])
    return parts


def add_heads(
    parts: dict[str, Tensor], path: str, projection: nn.Linear, recorded: Mapping[str, Tensor], config: Any
) -> None:
    """Add the outputs of the heads of an attention sub-layer after their projection."""
    for head, weight in enumerate(projection.weight.split(config.d_v, dim=1)):
        parts[f"{path}.head.{head}"] = recorded[f"{path}.head.{head}.output"] @ weight.T
    if projection.bias is not None:
        parts["biases"] = parts["biases"] + projection.bias


def normalize(parts: dict[str, Tensor], norm: nn.LayerNorm, variance: Tensor) -> None:
    """Apply a layer norm to each part of its input, whose variance is `[batch, target_len]`."""
    scale = norm.weight / (variance[..., None] + norm.eps).sqrt()
    for part, vector in parts.items():
        parts[part] = (vector - vector.mean(-1, keepdim=True)) * scale
    parts["biases"] = parts["biases"] + norm.bias
