"""Exercise 6: residual connections and layer normalization (paper 3.1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import normalize

from modeling_random_transformer import RandomTransformerForConditionalGeneration
from modeling_random_transformer.modeling_random_transformer import RandomTransformerLayer

from ..report import BLUE, GRAY, ORANGE, format_axes, save_plot, show_table
from .tasks import Reversal, exact_match, tiny_model, train

DEPTHS = (1, 2, 4, 6, 8, 12, 24)
VOCAB_SIZE, BATCH, LENGTH = 100, 8, 16
TASK = Reversal(symbols=6, length=4)
TRAINED_LAYERS = 6  # per stack, as in the paper
TRAINED_SIZES: dict[str, Any] = {"d_model": 32, "d_ff": 64, "num_heads": 2}
# Variants of "Add & Norm": with residual connections, with layer norms.
# "Add & Norm" from the input of a sub-layer, its output and its layer norm.
Connection = Callable[[Tensor, Tensor, nn.LayerNorm], Tensor]
VARIANTS: dict[str, Connection] = {
    "both": lambda states, output, norm: norm(states + output),
    "residuals only": lambda states, output, _: states + output,
    "norms only": lambda _, output, norm: norm(output),
    "neither": lambda _states, output, _norm: output,
}
PANELS = {"size": "Size of the output", "gradient": "Gradient at the first layer", "similarity": "Similarity of tokens"}
STYLES = {"both": (BLUE, "-"), "residuals only": (ORANGE, "-"), "norms only": ("#5a9a5a", "--"), "neither": (GRAY, ":")}


@dataclass
class Measurements:
    """Measurements of a random encoder.

    Attributes:
        size: root mean square of the output.
        gradient: the norm of the gradient of the first layer's parameters, for a gradient of fixed size at the output.
        similarity: the mean cosine similarity of the outputs of two tokens.
    """

    size: float
    gradient: float
    similarity: float


@dataclass
class DepthResult:
    """By variant: measurements in the order of `depths`, and the exact match of a trained model."""

    depths: Sequence[int]
    measurements: dict[str, list[Measurements]] = field(default_factory=dict)
    exact_match: dict[str, float] = field(default_factory=dict)


def experiment(seed: int, depths: Sequence[int] = DEPTHS, steps: int = 250) -> DepthResult:
    result = DepthResult(depths)
    for variant in VARIANTS:
        result.measurements[variant] = [measure(variant, depth, seed) for depth in depths]
        result.exact_match[variant] = train_variant(variant, seed, steps)
    return result


def measure(variant: str, depth: int, seed: int) -> Measurements:
    model = build(variant, VOCAB_SIZE, seed, depth).double()  # some gradients are too small for float32
    ids = torch.randint(4, VOCAB_SIZE, (BATCH, LENGTH))
    states = model.model.encoder(ids).last_hidden_state  # [BATCH, LENGTH, d_model]
    states.backward(torch.randn_like(states) / (BATCH * LENGTH))
    gradients = [p.grad.norm() for p in model.model.encoder.layers[0].parameters() if p.grad is not None]
    return Measurements(
        states.square().mean().sqrt().item(), torch.stack(gradients).norm().item(), mean_similarity(states.detach())
    )


def mean_similarity(states: Tensor) -> float:
    """The mean cosine similarity of two tokens of a sentence; states are `[batch, length, d_model]`."""
    directions = normalize(states, dim=-1)
    cosines = directions @ directions.transpose(1, 2)
    off_diagonal = ~torch.eye(states.shape[1], dtype=torch.bool)
    return cosines[:, off_diagonal].mean().item()


def train_variant(variant: str, seed: int, steps: int) -> float:
    model = build(variant, TASK.vocab_size, seed, TRAINED_LAYERS, **TRAINED_SIZES)
    train(model, lambda: TASK.sample(64), steps)
    return exact_match(model, TASK)


def build(
    variant: str, vocab_size: int, seed: int, depth: int, **sizes: int
) -> RandomTransformerForConditionalGeneration:
    """A random model of `depth` layers per stack, with the variant's connection around each sub-layer."""
    model = tiny_model(vocab_size, seed, encoder_layers=depth, decoder_layers=depth, **sizes)
    for layer in (*model.model.encoder.layers, *model.model.decoder.layers):
        layer.forward = partial(forward, layer, VARIANTS[variant])
    return model


def forward(
    layer: RandomTransformerLayer,
    connect: Connection,
    states: Tensor,
    attention_mask: Tensor | None = None,
    source: Tensor | None = None,
    encoder_attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor:
    """The forward pass of an encoder or decoder layer, with `connect` around each sub-layer and without dropout."""
    output, _ = layer.self_attn(states, attention_mask=attention_mask, **kwargs)
    states = connect(states, output, layer.self_attn_layer_norm)
    if source is not None:
        output, _ = layer.encoder_attn(states, encoder_attention_mask, key_value_states=source, **kwargs)
        states = connect(states, output, layer.encoder_attn_layer_norm)
    return connect(states, layer.feed_forward(states), layer.final_layer_norm)


def show(result: DepthResult, folder: Path) -> None:
    for name, title in PANELS.items():
        rows = [
            (variant, *(f"{getattr(measurement, name):.2g}" for measurement in measurements))
            for variant, measurements in result.measurements.items()
        ]
        show_table(f"{title}, by the number of layers of a random encoder", ("", *map(str, result.depths)), rows)
    trained = [(variant, f"{share:.1%}") for variant, share in result.exact_match.items()]
    show_table(f"{TRAINED_LAYERS} + {TRAINED_LAYERS} layers, trained to reverse", ("", "exact match"), trained)
    save_plot(draw(result), folder / "residual_and_norm.png")


def draw(result: DepthResult) -> Figure:
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, 3), PANELS.items(), strict=True):
        for variant, measurements in result.measurements.items():
            values = [getattr(measurement, name) for measurement in measurements]
            color, dashes = STYLES[variant]
            axes.plot(result.depths, values, dashes, label=variant, color=color, linewidth=2, marker="o", markersize=3)
        axes.set_yscale("linear" if name == "similarity" else "log")
        axes.set(xlabel="layers", xticks=range(0, 25, 4))
        format_axes(axes, title)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    return figure
