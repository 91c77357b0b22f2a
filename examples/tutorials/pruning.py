"""Pruning of attention heads (Michel et al. 2019, "Are Sixteen Heads Really Better than One?").

Each head is multiplied by a mask variable. The gradient of the loss with respect to it, at 1, estimates how much the
loss changes without the head. The heads with the smallest gradients are pruned first.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import sacrebleu
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from .report import BLUE, GRAY, GREEN, ORANGE, format_axes, save_plot, show_table
from .training_helpers import Pairs, translate

BATCH = 50  # sentences
# The attentions of the paper's Figure 1: stack, and name of the module in a layer.
KINDS = {
    "encoder self-attention": ("encoder", "self_attn"),
    "decoder self-attention": ("decoder", "self_attn"),
    "encoder-decoder attention": ("decoder", "encoder_attn"),
}
COLORS = dict(zip(KINDS, (ORANGE, GREEN, BLUE), strict=True))
RANDOM_ORDERS = 3
POINTS = 8  # points of a curve without the complete model


@dataclass(frozen=True, order=True)
class Head:
    """A head: the kind of attention, the layer and the index in the layer, from 0."""

    kind: str
    layer: int
    index: int


@dataclass
class Point:
    """The scores of a pruned model on held-out sentences.

    Attributes:
        pruned: number of pruned heads.
        bleu: BLEU, 0 to 100.
        exact_match: percentage of translations that equal the reference.
    """

    pruned: int
    bleu: float
    exact_match: float


@dataclass
class PruningResult:
    """The importance of each head, and curves by the name of the order in which heads are pruned.

    Attributes:
        importance: by head.
        all_heads: curves of orders of all heads: by importance, and random ones.
        by_kind: for each kind, the curve of pruning its heads only, by importance.
    """

    importance: dict[Head, float]
    all_heads: dict[str, list[Point]] = field(default_factory=dict)
    by_kind: dict[str, list[Point]] = field(default_factory=dict)


def measure_pruning(
    model: Any, tokenizer: Any, ranking: Pairs, test: Pairs, seed: int = 0, random_orders: int = RANDOM_ORDERS
) -> PruningResult:
    """Rank the heads on some sentence pairs, and measure pruned models on others.

    Args:
        model: a trained translation model. Its weights are restored.
        tokenizer: its tokenizer.
        ranking: the pairs for the importance of the heads.
        test: the pairs for the scores.
        seed: random seed of the random orders.
        random_orders: number of random orders.
    """
    importance = head_importance(model, tokenizer, ranking)
    order = sorted(importance, key=importance.__getitem__)
    result = PruningResult(importance)

    def curve(heads: Sequence[Head]) -> list[Point]:
        points = {count: measure(model, tokenizer, heads[:count], test) for count in {*counts(len(heads))}}
        return [points[count] for count in counts(len(heads))]

    result.all_heads["by importance"] = curve(order)
    for number in range(random_orders):
        shuffled = random.Random(seed + number).sample(order, len(order))
        result.all_heads[f"random {number + 1}"] = curve(shuffled)
    for kind in KINDS:
        result.by_kind[kind] = curve([head for head in order if head.kind == kind])
    return result


def counts(heads: int) -> list[int]:
    """How many heads the points of a curve prune: from none to all, evenly spaced."""
    return [round(heads * point / POINTS) for point in range(POINTS + 1)]


def measure(model: Any, tokenizer: Any, pruned: Sequence[Head], test: Pairs) -> Point:
    """Greedy translations of the test pairs without some heads."""
    sources, references = map(list, zip(*test, strict=True))
    longest = max(map(len, tokenizer(references)["input_ids"]))  # a pruned model may never produce the end token
    with prune(model, pruned):
        translations = translate(model, tokenizer, sources, do_sample=False, max_new_tokens=longest + 2)
    hits = sum(translation == reference for translation, reference in zip(translations, references, strict=True))
    bleu = sacrebleu.corpus_bleu(translations, [references]).score
    return Point(len(pruned), bleu, 100 * hits / len(test))


# Heads of a model


def attentions(model: Any) -> Iterator[tuple[str, int, Any]]:
    """Kind, layer and module of each attention."""
    for kind, (stack, name) in KINDS.items():
        for layer, module in enumerate(getattr(model.model, stack).layers):
            yield kind, layer, getattr(module, name)


@contextmanager
def prune(model: Any, heads: Sequence[Head]) -> Iterator[None]:
    """Remove the output of heads within the block, by zeros in the columns of the output projection."""
    removed = set(heads)
    weights = [module.out_proj.weight for _, _, module in attentions(model)]
    saved = [weight.detach().clone() for weight in weights]
    with torch.no_grad():
        for kind, layer, module in attentions(model):
            columns = module.out_proj.weight.unflatten(1, (module.config.num_heads, -1))  # [d_model, heads, d_v]
            for index in range(module.config.num_heads):
                if Head(kind, layer, index) in removed:
                    columns[:, index] = 0.0
    try:
        yield
    finally:
        with torch.no_grad():
            for weight, original in zip(weights, saved, strict=True):
                weight.copy_(original)


# Importance


def head_importance(model: Any, tokenizer: Any, pairs: Pairs) -> dict[Head, float]:
    """The mean over sentences of |∂ loss / ∂ mask| of each head (Michel et al. 2019, equation 2).

    As in the paper, the values of a layer's attention are divided by their Euclidean norm.
    """
    model.eval()
    totals: dict[tuple[str, int], Tensor] = {}
    for start in range(0, len(pairs), BATCH):
        for key, gradients in mask_gradients(model, tokenizer, pairs[start : start + BATCH]).items():
            totals[key] = totals.get(key, torch.zeros(())) + gradients.abs().sum(dim=0)
    return {
        Head(kind, layer, index): value
        for (kind, layer), total in totals.items()
        for index, value in enumerate((total / total.norm()).tolist())
    }


def mask_gradients(model: Any, tokenizer: Any, pairs: Pairs) -> dict[tuple[str, int], Tensor]:
    """The gradient of each sentence's loss with respect to the masks, by kind and layer: `[sentences, heads]`."""
    sources, targets = map(list, zip(*pairs, strict=True))
    inputs = tokenizer(sources, text_target=targets, padding=True, truncation=True, return_tensors="pt")
    labels = inputs["labels"].masked_fill(inputs["labels"] == tokenizer.pad_token_id, -100)
    masks = {
        (kind, layer): torch.ones(len(pairs), module.config.num_heads, requires_grad=True)
        for kind, layer, module in attentions(model)
    }
    with ExitStack() as hooks:
        for kind, layer, module in attentions(model):
            handle = module.out_proj.register_forward_pre_hook(masking(masks[kind, layer]))
            hooks.callback(handle.remove)
        logits = model(**{**inputs, "labels": labels}).logits  # [sentences, target_len, vocab_size]
    # The sum over sentences: a mask of one sentence affects the loss of this sentence only.
    loss = nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="sum")
    return dict(zip(masks, torch.autograd.grad(loss, list(masks.values())), strict=True))


def masking(mask: Tensor) -> Callable[[nn.Module, tuple[Tensor]], tuple[Tensor]]:
    """A hook that multiplies the heads, concatenated in `[sentences, length, heads · d_v]`, by `[sentences, heads]`."""

    def multiply(_: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        heads = inputs[0].unflatten(2, (mask.shape[1], -1))  # [sentences, length, heads, d_v]
        return ((heads * mask[:, None, :, None]).flatten(2),)

    return multiply


# Output


def show_pruning(result: PruningResult, path: Path) -> None:
    """Print the importance of the heads and the scores, and draw the curves as a PNG."""
    layers = sorted({(head.kind, head.layer) for head in result.importance})
    heads = 1 + max(head.index for head in result.importance)
    rows = [
        (f"{kind}, layer {layer}", *(f"{result.importance[Head(kind, layer, i)]:.2f}" for i in range(heads)))
        for kind, layer in layers
    ]
    show_table("Importance of the heads", ("", *(f"head {i}" for i in range(heads))), rows)
    for title, curves in (("All heads", result.all_heads), ("Heads of one kind, by importance", result.by_kind)):
        rows = [
            (f"{i / POINTS:.1%}", *(f"{curve[i].bleu:.1f} / {curve[i].exact_match:.1f}" for curve in curves.values()))
            for i in range(POINTS + 1)
        ]
        show_table(f"{title}: BLEU / exact match in percent on held-out sentences", ("pruned", *curves), rows)
    save_plot(draw_pruning(result), path)


def draw_pruning(result: PruningResult) -> Figure:
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    for name, points in result.all_heads.items():
        is_random = name.startswith("random")
        label = None if is_random and name != "random 1" else "random orders" if is_random else name
        draw_curve(left, points, label, GRAY if is_random else BLUE, ":" if is_random else "-")
    for kind, points in result.by_kind.items():
        draw_curve(right, points, kind, COLORS[kind], "-")
    left.set_ylabel("BLEU")
    for axes, title in ((left, "All heads"), (right, "Heads of one kind, by importance")):
        axes.set(xlabel="pruned heads (%)", ylim=(0, 102))
        format_axes(axes, title)
        axes.legend(frameon=False)
    return figure


def draw_curve(axes: Axes, points: Sequence[Point], label: str | None, color: str, style: str) -> None:
    total = points[-1].pruned
    shares = [100 * point.pruned / total for point in points]
    axes.plot(shares, [p.bleu for p in points], style, label=label, color=color, linewidth=2, marker="o", markersize=3)
