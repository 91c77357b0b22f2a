"""Exercise 3: an attention width that is too small, or too large (paper 3.2.1)."""

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

from .exercises_tasks import Reversal, exact_match, tiny_model, train
from .report import BLUE, GRAY, ORANGE, console, show_table

WIDTHS = (1, 2, 4, 8, 16, 64, 256)
PAIRS, D_MODEL = 64, 64  # of query and key that a head has to learn, and the width of their states
KEYS = 32  # that a random query sees
TASK, TASK_WIDTH = Reversal(symbols=10, length=6), 256  # of whole models, with and without scaling


@dataclass
class Head:
    """A trained head: its weights, the median processor time of a training step, and how many queries find their key.

    A query has found its key if no other has a larger weight; `found` is the share of them.
    """

    parameters: int
    milliseconds: float
    found: float


@dataclass
class WidthResult:
    """By d_k, heads, and the entropy of attention to random keys; and whole models of one d_k.

    Attributes:
        heads: trained to find a key for each query.
        scaled: how even the weights of random queries are: 1 for all keys alike, 0 for a single one.
        unscaled: the same without 1/√d_k.
        models: by the factor on the scores, the loss in the end and the share that is reversed exactly.
    """

    heads: dict[int, Head] = field(default_factory=dict)
    scaled: dict[int, float] = field(default_factory=dict)
    unscaled: dict[int, float] = field(default_factory=dict)
    models: dict[str, tuple[float, float]] = field(default_factory=dict)


def compare_widths(seed: int, widths: Sequence[int] = WIDTHS, head_steps: int = 500, steps: int = 250) -> WidthResult:
    result = WidthResult()
    for width in widths:
        result.heads[width] = train_head(width, seed, head_steps)
        result.scaled[width] = evenness(width, width**-0.5, seed)
        result.unscaled[width] = evenness(width, 1.0, seed)
    for name, scale in {"1/√d_k": None, "1": 1.0}.items():
        model = tiny_model(TASK.vocab_size, seed, num_heads=1, d_k=TASK_WIDTH, d_v=16, attention_scale=scale)
        result.models[name] = train(model, lambda: TASK.draw(64), steps), exact_match(model, TASK)
    return result


def train_head(width: int, seed: int, steps: int) -> Head:
    """Teach one head to look from each of `PAIRS` random states at one of as many others."""
    torch.manual_seed(seed)
    config = RandomTransformerConfig(d_model=D_MODEL, num_heads=1, d_k=width, d_v=D_MODEL, attn_implementation="eager")
    attention = RandomTransformerAttention(config, layer_idx=0)
    optimizer = torch.optim.Adam(attention.parameters(), lr=0.01)
    queries, keys = torch.randn(2, 1, PAIRS, D_MODEL)
    seconds = []
    for _ in range(steps):
        start = time.process_time()
        look(attention, queries, keys).diagonal().log().mean().neg().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - start)
    found = look(attention, queries, keys).argmax(dim=1) == torch.arange(PAIRS)
    return Head(
        sum(parameter.numel() for parameter in attention.parameters()),
        1000 * median(seconds),
        found.float().mean().item(),
    )


def look(attention: RandomTransformerAttention, queries: Tensor, keys: Tensor) -> Tensor:
    """The weights of the head, `[PAIRS, PAIRS]`, for states `[1, PAIRS, D_MODEL]`."""
    _, weights = attention(queries, key_value_states=keys)
    return weights[0, 0]


def evenness(width: int, scaling: float, seed: int, queries: int = 1000) -> float:
    """The mean entropy of the attention weights of queries and keys from N(0, 1), as a share of the largest, ln KEYS.

    Their scores have a variance of d_k (paper 3.2.1, footnote 4): the wider, the closer softmax comes to 0 and 1.
    """
    torch.manual_seed(seed)
    query, keys = torch.randn(1, 1, queries, width), torch.randn(1, 1, KEYS, width)
    _, weights = eager_attention_forward(nn.Identity(), query, keys, keys, None, scaling)
    return torch.special.entr(weights).sum(dim=-1).mean().item() / math.log(KEYS)


def show_widths(result: WidthResult, folder: Path) -> None:
    heads = [
        (str(width), f"{head.found:.1%}", f"{head.parameters:,}", f"{head.milliseconds:.2f}")
        for width, head in result.heads.items()
    ]
    title = f"A head learns to find {PAIRS} keys, each for its own query"
    show_table(title, ("d_k", "found", "parameters", "ms a step"), heads)
    entropies = [(str(w), f"{scaled:.3f}", f"{result.unscaled[w]:.3f}") for w, scaled in result.scaled.items()]
    title = f"Entropy of the weights of random queries for {KEYS} keys, 1 = all alike"
    show_table(title, ("d_k", "scores scaled by 1/√d_k", "not scaled"), entropies)
    models = [(name, f"{loss:.3f}", f"{share:.1%}") for name, (loss, share) in result.models.items()]
    title = f"Models with d_k = {TASK_WIDTH} learn to reverse {TASK.length} of {TASK.symbols} symbols"
    show_table(title, ("scores times", "loss, nats per token", "reversed exactly"), models)
    draw_widths(result, folder / "attention_width.png")
    console.print(f"Picture: {folder / 'attention_width.png'}", soft_wrap=True)


def draw_widths(result: WidthResult, path: Path) -> None:
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    found, cost, entropy = figure.subplots(1, 3)
    heads = result.heads
    draw_line(found, {width: 100 * head.found for width, head in heads.items()}, GRAY)
    found.set(title="Keys found, %", ylim=(0, 105))
    draw_line(cost, {width: head.parameters for width, head in heads.items()}, GRAY)
    cost.set(title="Parameters of the head", ylim=(0, None))
    draw_line(entropy, result.scaled, BLUE, "scaled by 1/√d_k")
    draw_line(entropy, result.unscaled, ORANGE, "not scaled")
    entropy.set(title="Entropy of the weights (1 = even)", ylim=(0, 1.05))
    entropy.legend(frameon=False, loc="lower left")
    for axes in (found, cost, entropy):
        finish(axes, list(heads))
    figure.savefig(path, dpi=110)


def draw_line(axes: Axes, points: Mapping[int, float], color: str, label: str = "") -> None:
    axes.plot(list(points), list(points.values()), marker="o", markersize=4, linewidth=2, color=color, label=label)


def finish(axes: Axes, widths: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(widths, [str(width) for width in widths])
    axes.set_xlabel("d_k")
    axes.set_title(axes.get_title(), fontsize=11, fontweight="bold")
    axes.grid(axis="y", color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
