"""The contribution of each part of the decoder to a logit, and the predictions after each sub-layer."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ...verification_random_transformer import difference_reason
from .paths import find_stacks, layer_norms


def logit_attribution(
    model: Any,
    recorded: Mapping[str, Tensor],
    tokens: Tensor,
) -> dict[str, Tensor]:
    """The contribution of each part of the decoder to the logits of some tokens (*direct logit attribution*).

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
        ValueError: a projection is quantized or has an adapter, so that its weights are not what it computes; or the
            sum of all parts is not the recorded logits, since the code of the model has been edited.
    """
    for name, module in model.named_modules():
        is_projection = name.endswith(("lm_head", "out_proj"))
        if is_projection and type(module) is not nn.Linear:
            raise ValueError(f"{name} must be nn.Linear (merge adapters, dequantize), got {type(module).__name__}.")
    weight, bias = model.lm_head.weight, model.lm_head.bias
    rows = weight[tokens]
    parts = decoder_parts(model, recorded)
    total = sum(parts.values(), torch.zeros_like(parts["biases"]))
    bias = None if bias is None else bias.to(total)
    check_recomputed_logits("the sum of the parts", nn.functional.linear(total, weight.to(total), bias), recorded)
    values = {}
    for part, vector in parts.items():
        values[part] = torch.einsum("btd,btkd->btk", vector, rows.to(vector))
    if bias is not None:
        values["biases"] = values["biases"] + bias[tokens]
    return values


def logit_lens(model: Any, recorded: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """The logits if the decoder ended after its embedding or after a sub-layer (the *logit lens*).

    Yields:
        The path of the embedding or the sub-layer in the trace, and logits `[batch, target_len, vocab_size]`.

    Raises:
        ValueError: those of the last sub-layer are not the recorded logits, since the model has been edited.
    """
    stack = find_stacks(model)["decoder"]
    states = {"decoder.embedding": recorded["decoder.embedding.sum"]}
    end = "layer_norm" if model.config.norm_order == "post" else "residual"
    for index, layer in enumerate(stack.layers):
        for name in layer_norms(layer):
            path = f"decoder.layers.{index}.{name}"
            states[path] = recorded[f"{path}.{end}"]
    *earlier, last = states
    logits = model.lm_head(stack.layer_norm(states[last]))
    check_recomputed_logits("the output layer after the last sub-layer", logits, recorded)
    for path in earlier:
        yield path, model.lm_head(stack.layer_norm(states[path]))
    yield last, logits


def check_recomputed_logits(name: str, logits: Tensor, recorded: Mapping[str, Tensor]) -> None:
    """Raise a ValueError if the logits that follow from the states of a trace differ from the recorded logits.

    Args:
        name: what they were computed by, in the message.
        logits: `[batch, target_len, vocab_size]`.
        recorded: the trace. The model may have returned the logits of the last positions only.
    """
    expected = recorded["logits"]
    length = expected.shape[1]
    if reason := difference_reason(logits[:, -length:], expected):
        raise ValueError(
            f"{name} must give the logits of the model, but {reason}. "
            "The layers or the output have been edited, or values were replaced."
        )


def decoder_parts(model: Any, recorded: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The parts whose sum is the decoder's output, each `[batch, target_len, d_model]`."""
    stack = find_stacks(model)["decoder"]
    scaled = recorded["decoder.embedding.scaled"]
    parts = {
        "decoder.embedding.token": scaled,
        "decoder.embedding.position": recorded["decoder.embedding.sum"] - scaled,
        "biases": torch.zeros_like(scaled),
    }
    for index, layer in enumerate(stack.layers):
        for name, norm in layer_norms(layer).items():
            path = f"decoder.layers.{index}.{name}"
            if name == "ffn":
                parts[path] = recorded[f"{path}.output"]
            else:
                add_heads(parts, path, getattr(layer, name), recorded)
            if model.config.norm_order == "post":
                normalize_parts(parts, norm, recorded[f"{path}.variance"])
    if isinstance(stack.layer_norm, nn.LayerNorm):
        normalize_parts(parts, stack.layer_norm, recorded["decoder.final.variance"])
    return parts


def add_heads(
    parts: dict[str, Tensor],
    path: str,
    attention: Any,
    recorded: Mapping[str, Tensor],
) -> None:
    """Add the outputs of the heads of an attention sub-layer after their projection."""
    projection = attention.out_proj
    columns = projection.weight.split(attention.config.d_v, dim=1)
    for head, weight in enumerate(columns):
        head_path = f"{path}.head.{head}"
        output = recorded[f"{head_path}.output"]
        parts[head_path] = output @ weight.T
    if projection.bias is not None:
        parts["biases"] = parts["biases"] + projection.bias


def normalize_parts(parts: dict[str, Tensor], norm: nn.LayerNorm, variance: Tensor) -> None:
    """Apply a layer norm to each part of its input, whose variance is `[batch, target_len]`."""
    deviation = (variance[..., None] + norm.eps).sqrt()
    scale = norm.weight / deviation
    for part, vector in parts.items():
        mean = vector.mean(-1, keepdim=True)
        parts[part] = (vector - mean) * scale
    parts["biases"] = parts["biases"] + norm.bias
