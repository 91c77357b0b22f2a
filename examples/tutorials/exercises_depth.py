"""Exercise 6: residual connections and layer norm (paper 3.1)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn.functional import normalize

from modeling_random_transformer import RandomTransformerForConditionalGeneration
from modeling_random_transformer.modeling_random_transformer import RandomTransformerBlock

from .exercises_tasks import Reversal, exact_match, tiny_model, train
from .report import BLUE, GRAY, ORANGE, console, show_table

DEPTHS = (1, 2, 4, 6, 8, 12, 24)
VOCAB_SIZE, BATCH, LENGTH = 100, 8, 16
TASK = Reversal(symbols=6, length=4)
TRAINED_BLOCKS = 6  # a stack, as in the paper
TRAINED_SIZES: dict[str, Any] = {"d_model": 32, "d_ff": 64, "num_heads": 2}
PANELS = {"size": "Size of the output", "gradient": "Gradient at block 1", "likeness": "Likeness of tokens"}
# Colours and dashes, where one line lies on another.
STYLES = {"both": (BLUE, "-"), "residuals only": (ORANGE, "-"), "norms only": ("#5a9a5a", "--"), "neither": (GRAY, ":")}


@dataclass
class Measures:
    """Of a random encoder.

    Attributes:
        size: of its output, as root mean square.
        gradient: the norm of the gradient that reaches its first block, for a gradient of fixed size at the output.
        likeness: the mean cosine between the outputs of two tokens.
    """

    size: float
    gradient: float
    likeness: float


@dataclass
class DepthResult:
    """By variant: measures in the order of `depths`, and the share that a trained model reverses exactly."""

    depths: Sequence[int]
    measures: dict[str, list[Measures]] = field(default_factory=dict)
    exact_match: dict[str, float] = field(default_factory=dict)


def compare_depths(seed: int, depths: Sequence[int] = DEPTHS, steps: int = 250) -> DepthResult:
    result = DepthResult(depths)
    for variant in CONNECTIONS:
        result.measures[variant] = [measure(variant, depth, seed) for depth in depths]
        result.exact_match[variant] = train_variant(variant, seed, steps)
    return result


def measure(variant: str, depth: int, seed: int) -> Measures:
    model = build(variant, VOCAB_SIZE, seed, depth).double()  # float32 is too small for some of the gradients
    ids = torch.randint(4, VOCAB_SIZE, (BATCH, LENGTH))
    states = model.model.encoder(ids).last_hidden_state  # [BATCH, LENGTH, d_model]
    states.backward(torch.randn_like(states) / (BATCH * LENGTH))
    first = [p.grad.norm() for p in model.model.encoder.layers[0].parameters() if p.grad is not None]
    return Measures(states.square().mean().sqrt().item(), torch.stack(first).norm().item(), likeness(states.detach()))


def likeness(states: Tensor) -> float:
    """The mean cosine between two tokens of a sentence; states are `[batch, length, d_model]`."""
    directions = normalize(states, dim=-1)
    cosines = directions @ directions.transpose(1, 2)
    others = ~torch.eye(states.shape[1], dtype=torch.bool)
    return cosines[:, others].mean().item()


def train_variant(variant: str, seed: int, steps: int) -> float:
    model = build(variant, TASK.vocab_size, seed, TRAINED_BLOCKS, **TRAINED_SIZES)
    train(model, lambda: TASK.draw(64), steps)
    return exact_match(model, TASK)


def build(
    variant: str, vocab_size: int, seed: int, depth: int, **sizes: int
) -> RandomTransformerForConditionalGeneration:
    """A random model of `depth` blocks a stack, with another connection around the sub-layers of each."""
    model = tiny_model(vocab_size, seed, encoder_layers=depth, decoder_layers=depth, **sizes)
    for block in (*model.model.encoder.layers, *model.model.decoder.layers):
        block.add_and_norm = partial(CONNECTIONS[variant], block)
    return model


def residual_only(_: RandomTransformerBlock, states: Tensor, _norm: nn.LayerNorm, sublayer: Callable) -> Tensor:
    return states + sublayer(states)


def norm_only(_: RandomTransformerBlock, states: Tensor, norm: nn.LayerNorm, sublayer: Callable) -> Tensor:
    return norm(sublayer(states))


def neither(_: RandomTransformerBlock, states: Tensor, _norm: nn.LayerNorm, sublayer: Callable) -> Tensor:
    return sublayer(states)


CONNECTIONS: dict[str, Callable[..., Tensor]] = {
    "both": RandomTransformerBlock.add_and_norm,
    "residuals only": residual_only,
    "norms only": norm_only,
    "neither": neither,
}


def show_depths(result: DepthResult, folder: Path) -> None:
    for name, title in PANELS.items():
        rows = [
            (variant, *(f"{getattr(each, name):.2g}" for each in measures))
            for variant, measures in result.measures.items()
        ]
        show_table(f"{title}, by blocks of a random encoder", ("", *map(str, result.depths)), rows)
    learned = [(variant, f"{share:.1%}") for variant, share in result.exact_match.items()]
    show_table(f"{TRAINED_BLOCKS} + {TRAINED_BLOCKS} blocks, trained to reverse", ("", "reversed exactly"), learned)
    path = folder / "residual_and_norm.png"
    draw_depths(result, path)
    console.print(f"Picture: {path}", soft_wrap=True)


def draw_depths(result: DepthResult, path: Path) -> None:
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, (name, title) in zip(figure.subplots(1, 3), PANELS.items(), strict=True):
        for variant, measures in result.measures.items():
            values = [getattr(each, name) for each in measures]
            color, dashes = STYLES[variant]
            axes.plot(result.depths, values, dashes, label=variant, color=color, linewidth=2, marker="o", markersize=3)
        axes.set_yscale("linear" if name == "likeness" else "log")
        finish(axes, title)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=110)


def finish(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=11, fontweight="bold")
    axes.set_xlabel("blocks")
    axes.set_xticks(range(0, 25, 4))
    axes.grid(axis="y", color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
