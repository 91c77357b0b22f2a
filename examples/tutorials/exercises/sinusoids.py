"""Exercise 15: sinusoids as a counter; learned and sinusoidal positions beyond the training length (paper 3.5)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForTokenClassification
from modeling_random_transformer.modeling_random_transformer import SinusoidalPositions

from ..report import BLUE, GRAY, GREEN, ORANGE, format_axes, save_plot, show_table
from .tasks import FIRST_SYMBOL, Batch, train

BITS = 10
COUNTER_WIDTH = 26  # 10000^(2/26) = 2.03: each wavelength is about twice the previous one, as in a binary number
WIDTH = 64  # width of the compared positions and of the trained models
OFFSET = 5  # distance of the linear shift
SYMBOLS, TRAINED_LENGTH, LONGEST = 10, 16, 48
LEARNED, SINUSOIDAL, RANDOM_START = "learned", "sinusoidal", "sinusoidal, random start"
COLORS = {LEARNED: ORANGE, SINUSOIDAL: BLUE, RANDOM_START: GREEN}


@dataclass
class Encoding:
    """Properties of an encoding of the positions from 0 to 2^BITS - 1.

    Attributes:
        neighbors: the smallest and the largest distance between two neighboring positions.
        shift_error: the relative error of the best linear map from each position to the one `OFFSET` later.
            1 is the error of predicting the mean.
    """

    neighbors: tuple[float, float]
    shift_error: float


@dataclass
class SinusoidResult:
    """Properties of encodings, and the accuracy of trained models.

    Attributes:
        changes: sign changes of each sine and value changes of each bit, among 2^BITS positions; the fastest first.
        encodings: by name.
        accuracy: of naming the previous token, by method and by position, in sequences of `LONGEST` tokens.
    """

    changes: dict[str, list[int]] = field(default_factory=dict)
    encodings: dict[str, Encoding] = field(default_factory=dict)
    accuracy: dict[str, list[float]] = field(default_factory=dict)


def experiment(seed: int, steps: int = 900) -> SinusoidResult:
    bits, counter = binary_numbers(), sinusoids(COUNTER_WIDTH)
    result = SinusoidResult()
    result.changes["binary"] = count_changes(bits)
    result.changes["sinusoids"] = count_changes(counter[1:, ::2] > 0)[:BITS]  # sin 0 has no sign
    torch.manual_seed(seed)
    tables = {"binary": bits, "sinusoidal": sinusoids(WIDTH), "random vectors": torch.randn(2**BITS, WIDTH).double()}
    result.encodings = {name: examine(table) for name, table in tables.items()}
    for method in COLORS:
        result.accuracy[method] = train_previous_token(method, seed, steps)
    return result


def binary_numbers() -> Tensor:
    """The bits of each position, the lowest first, `[positions, BITS]`."""
    return (torch.arange(2**BITS)[:, None] >> torch.arange(BITS) & 1).double()


def sinusoids(width: int) -> Tensor:
    """The model's encoding of each position, `[positions, width]`."""
    config = RandomTransformerConfig(d_model=width, num_heads=1, max_position_embeddings=2**BITS)
    return SinusoidalPositions(config).table.double()


def count_changes(values: Tensor) -> list[int]:
    """How often each column of `[positions, columns]` changes from one position to the next."""
    return (values[1:] != values[:-1]).sum(dim=0).tolist()


def examine(table: Tensor) -> Encoding:
    distances = (table[1:] - table[:-1]).norm(dim=1)
    before, after = torch.cat([table, torch.ones(len(table), 1)], dim=1)[:-OFFSET], table[OFFSET:]
    predicted = before @ torch.linalg.lstsq(before, after, driver="gelsd").solution
    error = (predicted - after).norm() / (after - after.mean(dim=0)).norm()
    return Encoding((distances.min().item(), distances.max().item()), error.item())


# Sequences that are longer than those of the training


def train_previous_token(method: str, seed: int, steps: int) -> list[float]:
    """Train an encoder to name the previous token, on sequences of at most `TRAINED_LENGTH` symbols.

    With a random start, the first token has a random position, so that all positions up to `LONGEST` occur in training.

    Returns:
        The accuracy at positions 2, 3, … of sequences of `LONGEST` symbols, which start at the first position.
    """
    torch.manual_seed(seed)
    options: dict[str, Any] = {"position_embedding": "learned", "max_position_embeddings": LONGEST}
    if method != LEARNED:
        # With a table of one position, the model computes the others when it needs them, with the current offset.
        options = {"position_embedding": "sinusoidal", "max_position_embeddings": 1}
    model = RandomTransformerForTokenClassification(
        RandomTransformerConfig(
            vocab_size=FIRST_SYMBOL + SYMBOLS,
            num_labels=FIRST_SYMBOL + SYMBOLS,
            d_model=WIDTH,
            d_ff=2 * WIDTH,
            num_heads=4,
            encoder_layers=1,
            dropout=0.0,
            **options,
        )
    )

    def training_batch() -> Batch:
        length = int(torch.randint(2, TRAINED_LENGTH + 1, ()))
        if method == RANDOM_START:
            model.config.position_offset = int(torch.randint(0, LONGEST - length + 1, ()))
        return sample_previous(64, length)

    train(model, training_batch, steps, learning_rate=3e-3)
    model.config.position_offset = 0
    with torch.no_grad():
        ids, labels = sample_previous(500, LONGEST)
        correct = model(input_ids=ids).logits.argmax(dim=-1) == labels
    return correct[:, 1:].float().mean(dim=0).tolist()


def sample_previous(count: int, length: int) -> Batch:
    """Random symbols, and as labels the previous symbol of each: both `[count, length]`. The first has no label."""
    ids = torch.randint(FIRST_SYMBOL, FIRST_SYMBOL + SYMBOLS, (count, length))
    return ids, torch.cat([torch.full((count, 1), -100), ids[:, :-1]], dim=1)


def mean_accuracy(accuracy: Sequence[float], start: int, end: int) -> float:
    """At the positions from `start` to `end`, counted from 1; `accuracy` starts at position 2."""
    return mean(accuracy[start - 2 : end - 1])


# Output


def show(result: SinusoidResult, folder: Path) -> None:
    rows = [(name, *map(str, changes)) for name, changes in result.changes.items()]
    title = f"Changes among {2**BITS} positions (sinusoids of d_model = {COUNTER_WIDTH}; binary numbers)"
    show_table(title, ("", *(f"{index}" for index in range(BITS))), rows)
    encodings = [
        (name, *(f"{value:.3g}" for value in (*encoding.neighbors, encoding.shift_error)))
        for name, encoding in result.encodings.items()
    ]
    columns = ("", "min. distance of neighbors", "max. distance", f"error of a linear shift by {OFFSET}")
    show_table(f"Encodings of {2**BITS} positions", columns, encodings)
    ranges = [(2, TRAINED_LENGTH), (TRAINED_LENGTH + 1, 2 * TRAINED_LENGTH), (2 * TRAINED_LENGTH + 1, LONGEST)]
    accuracy = [
        (name, *(f"{mean_accuracy(accuracies, *r):.1%}" for r in ranges))
        for name, accuracies in result.accuracy.items()
    ]
    title = f"Accuracy of naming the previous token, after training on at most {TRAINED_LENGTH} tokens, by position"
    show_table(title, ("", *(f"{start} to {end}" for start, end in ranges)), accuracy)
    save_plot(draw(result), folder / "sinusoids.png")


def draw(result: SinusoidResult) -> Figure:
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    shown = 64
    sines = sinusoids(COUNTER_WIDTH)[:shown, : 2 * int(math.log2(shown)) : 2]  # one column per bit
    left.pcolormesh(binary_numbers()[:shown, : sines.shape[1]].numpy(), cmap="Blues", rasterized=True)
    middle.pcolormesh(-sines.numpy(), cmap="Blues", vmin=-1, vmax=1, rasterized=True)
    for axes, title in ((left, "Binary numbers"), (middle, "Sinusoids (negative sine)")):
        axes.invert_yaxis()
        axes.set(xlabel="bit" if axes is left else "pair of dimensions", ylabel="position")
        axes.set_title(title, fontsize=11, fontweight="bold")
    for method, accuracy in result.accuracy.items():
        values = [100 * share for share in accuracy]
        right.plot(range(2, LONGEST + 1), values, label=method, color=COLORS[method], linewidth=2)
    right.axvline(TRAINED_LENGTH + 0.5, color=GRAY, linestyle=":", label="longest of the training")
    right.set(xlabel="position", ylim=(0, 105))
    format_axes(right, "Accuracy of the previous token, %")
    figure.legend(loc="outside lower right", ncols=2, frameon=False)
    return figure
