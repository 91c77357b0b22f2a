"""Exercise 3: an attention dimension that is too small or too large (paper 3.2.1)."""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer.modeling_random_transformer import RandomTransformerAttention, eager_attention_forward

from ..report import BLUE, GRAY, ORANGE, format_axes, save_plot, show_table
from .tasks import Reversal, exact_match, tiny_model, train

WIDTHS = (1, 2, 4, 8, 16, 64, 256)
PAIRS, D_MODEL = 64, 64  # number of query-key pairs that a head learns, and the width of their states
KEYS = 32  # keys per random query
TASK, TASK_WIDTH = Reversal(symbols=10, length=6), 256  # the task of complete models with and without scaling


@dataclass
class Head:
    """Measurements of a trained head.

    Attributes:
        parameters: number of weights and biases.
        milliseconds: median process time of a training step.
        accuracy: the fraction of queries whose own key has the largest weight.
    """

    parameters: int
    milliseconds: float
    accuracy: float


@dataclass
class WidthResult:
    """Measurements by d_k, and of complete models with one d_k.

    Attributes:
        heads: trained to attend to one key per query.
        scaled: relative entropy of the weights of random queries: 1 if uniform, 0 if on a single key.
        unscaled: the same without the factor 1/√d_k.
        models: by the factor of the scores, the final loss and the exact match.
    """

    heads: dict[int, Head] = field(default_factory=dict)
    scaled: dict[int, float] = field(default_factory=dict)
    unscaled: dict[int, float] = field(default_factory=dict)
    models: dict[str, tuple[float, float]] = field(default_factory=dict)


def experiment(seed: int, widths: Sequence[int] = WIDTHS, head_steps: int = 500, steps: int = 250) -> WidthResult:
    result = WidthResult()
    for width in widths:
        result.heads[width] = train_head(width, seed, head_steps)
        result.scaled[width] = relative_entropy(width, width**-0.5, seed)
        result.unscaled[width] = relative_entropy(width, 1.0, seed)
    for name, scale in {"1/√d_k": None, "1": 1.0}.items():
        model = tiny_model(TASK.vocab_size, seed, num_heads=1, d_k=TASK_WIDTH, d_v=16, attention_scale=scale)
        result.models[name] = train(model, lambda: TASK.sample(64), steps), exact_match(model, TASK)
    return result


def train_head(width: int, seed: int, steps: int) -> Head:
    """Train one head to attend from each of `PAIRS` random states to its own key among all keys."""
    torch.manual_seed(seed)
    config = RandomTransformerConfig(d_model=D_MODEL, num_heads=1, d_k=width, d_v=D_MODEL, attn_implementation="eager")
    attention = RandomTransformerAttention(config, layer_idx=0)
    optimizer = torch.optim.Adam(attention.parameters(), lr=0.01)
    queries, keys = torch.randn(2, 1, PAIRS, D_MODEL)
    seconds = []
    for _ in range(steps):
        start = time.process_time()
        attention_weights(attention, queries, keys).diagonal().log().mean().neg().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - start)
    correct = attention_weights(attention, queries, keys).argmax(dim=1) == torch.arange(PAIRS)
    return Head(
        sum(parameter.numel() for parameter in attention.parameters()),
        1000 * median(seconds),
        correct.float().mean().item(),
    )


def attention_weights(attention: RandomTransformerAttention, queries: Tensor, keys: Tensor) -> Tensor:
    """`[PAIRS, PAIRS]`, for states `[1, PAIRS, D_MODEL]`."""
    _, weights = attention(queries, key_value_states=keys)
    return weights[0, 0]


def relative_entropy(width: int, scaling: float, seed: int, queries: int = 1000) -> float:
    """The mean entropy of the attention weights for queries and keys from N(0, 1), divided by the maximum ln KEYS.

    The variance of their scores is d_k (paper 3.2.1, footnote 4), so the softmax saturates for large d_k.
    """
    torch.manual_seed(seed)
    query, keys = torch.randn(1, 1, queries, width), torch.randn(1, 1, KEYS, width)
    _, weights = eager_attention_forward(nn.Identity(), query, keys, keys, None, scaling)
    return torch.special.entr(weights).sum(dim=-1).mean().item() / math.log(KEYS)


def show(result: WidthResult, folder: Path) -> None:
    heads = [
        (str(width), f"{head.accuracy:.1%}", f"{head.parameters:,}", f"{head.milliseconds:.2f}")
        for width, head in result.heads.items()
    ]
    title = f"Training one head to attend to {PAIRS} keys, one per query"
    show_table(title, ("d_k", "correct keys", "parameters", "ms per step"), heads)
    entropies = [(str(w), f"{scaled:.3f}", f"{result.unscaled[w]:.3f}") for w, scaled in result.scaled.items()]
    title = f"Relative entropy of the weights of random queries over {KEYS} keys (1 = uniform)"
    show_table(title, ("d_k", "scores scaled by 1/√d_k", "unscaled"), entropies)
    models = [(name, f"{loss:.3f}", f"{share:.1%}") for name, (loss, share) in result.models.items()]
    title = f"Training models with d_k = {TASK_WIDTH} to reverse {TASK.length} of {TASK.symbols} symbols"
    show_table(title, ("factor of the scores", "loss, nats per token", "exact match"), models)
    save_plot(draw(result), folder / "attention_width.png")


def draw(result: WidthResult) -> Figure:
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    accuracy, cost, entropy = figure.subplots(1, 3)
    heads = result.heads
    draw_line(accuracy, {width: 100 * head.accuracy for width, head in heads.items()}, GRAY)
    accuracy.set(ylim=(0, 105))
    draw_line(cost, {width: head.parameters for width, head in heads.items()}, GRAY)
    cost.set(ylim=(0, None))
    draw_line(entropy, result.scaled, BLUE, "scaled by 1/√d_k")
    draw_line(entropy, result.unscaled, ORANGE, "unscaled")
    entropy.set(ylim=(0, 1.05))
    entropy.legend(frameon=False, loc="lower left")
    for axes, title in (
        (accuracy, "Correct keys, %"),
        (cost, "Parameters per head"),
        (entropy, "Relative entropy of the weights (1 = uniform)"),
    ):
        format_axes(axes, title)
        format_widths(axes, list(heads))
    return figure


def draw_line(axes: Axes, points: Mapping[int, float], color: str, label: str = "") -> None:
    axes.plot(list(points), list(points.values()), marker="o", markersize=4, linewidth=2, color=color, label=label)


def format_widths(axes: Axes, widths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.set_xlabel("d_k")
