"""Output of the examples: tables, the format of plots, and the summary and plots of the quickstart."""

import math
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor

from modeling_random_transformer.extras.inspection.explorer import cross_attention_labels

NEXT = """
Next, translate a sentence, and open a page that shows how it was translated. The model knows sentences like those of
its training pairs, also in capitals and punctuation:

    {command} translate --model {folder} {sentence}
    {command} explore {folder} {sentence}

From Python:
"""
HOW_TO_LOAD = """
    import modeling_random_transformer  # registers the Auto classes
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained({folder!r})
    model = AutoModelForSeq2SeqLM.from_pretrained({folder!r})
    outputs = model.generate(**tokenizer({sentence!r}, return_tensors="pt"))
    print(tokenizer.batch_decode(outputs, skip_special_tokens=True))
"""
BLUE, ORANGE, GREEN, RED, PURPLE, GRAY = "#1f5a94", "#e3944a", "#4c9a6a", "#a83232", "#7b5ea7", "#777777"
GRID_COLOR = "#e6e6e6"

console = Console(markup=False, emoji=False, highlight=False)  # sentences may contain [brackets] and :colons:


def show_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    console.print(title, style="bold")
    table = Table(*columns, box=box.SIMPLE_HEAD)
    for row in rows:
        table.add_row(*row)
    console.print(table)


def save_plot(figure: Figure, path: Path) -> None:
    """Save a plot as a PNG and as an SVG, and print the path of the PNG."""
    save_figure(figure, path, dpi=100)
    console.print(f"Plot: {path}", soft_wrap=True)


def save_figure(figure: Figure, path: Path, dpi: int = 160) -> None:
    """Save a figure as a PNG and, for slides, as an SVG beside it, which does not depend on the time."""
    figure.savefig(path, dpi=dpi)
    with rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})


def show_summary(scores: dict[str, tuple[float, float]], seconds: float, folder: Path, sentence: str) -> None:
    """Exact match and BLEU of each decoding method, the training time, and the paths of the output."""
    rows = [(name, f"{exact_match:.1f}%", f"{bleu:.1f}") for name, (exact_match, bleu) in scores.items()]
    show_table("Held-out sentences", ("decoding", "exact match", "BLEU"), rows)
    console.print(f"Training time: {seconds:.0f} s")
    console.print(f"Plots:         {folder / 'loss.png'}, {folder / 'attention.png'}", soft_wrap=True)
    console.print(f"Model folder:  {folder}", soft_wrap=True)
    arguments = {"command": command(), "folder": quoted(str(folder)), "sentence": quoted(sentence)}
    console.print(NEXT.format(**arguments), soft_wrap=True)
    console.print(HOW_TO_LOAD.format(folder=str(folder), sentence=sentence), soft_wrap=True)


def command() -> str:
    """How to call `random-transformer` of this environment, which may not be activated."""
    name = "random-transformer"
    program = shutil.which(name, path=str(Path(sys.executable).parent))
    if program is None:
        return f"{quoted(sys.executable)} -m modeling_random_transformer"
    return name if shutil.which(name) == program else quoted(os.path.relpath(program))


def quoted(text: str) -> str:
    """A text as an argument in a shell; cmd.exe knows double quotes only."""
    return subprocess.list2cmdline([text]) if os.name == "nt" else shlex.quote(text)


def draw_losses(history: Sequence[dict[str, float]], path: Path, config: Any, label_smoothing: float) -> None:
    """Plot the losses in a `Trainer`'s `log_history` and the minimum that label smoothing allows, as a PNG.

    `config` is that of the model.
    """
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    training = "training, with dropout" if config.dropout else "training"
    for key, label, color in (("loss", training, ORANGE), ("eval_loss", "held-out sentences", BLUE)):
        points = [(entry["step"], entry[key]) for entry in history if key in entry]
        axes.plot(*zip(*points, strict=True), label=label, color=color, linewidth=2, marker="o", markersize=3)
    floor = minimum_loss(config.vocab_size, label_smoothing)
    axes.axhline(floor, label="minimum with label smoothing", color=GRAY, linestyle=":")
    axes.set(xlabel="step", ylabel="cross-entropy (nats per token)", ylim=(0, None))
    format_axes(axes, "Training and evaluation loss")
    axes.legend(frameon=False)
    save_figure(figure, path)


def minimum_loss(vocab_size: int, label_smoothing: float) -> float:
    """The entropy of smoothed labels in nats, which is the minimum of the loss."""
    wrong = label_smoothing / vocab_size
    right = 1 - label_smoothing + wrong
    return -right * math.log(right) - (vocab_size - 1) * wrong * math.log(wrong)


def draw_attention(model: Any, tokenizer: Any, sentence: str, path: Path) -> None:
    """Plot the cross-attention of a greedy translation, in the layer with the most concentrated weights, as a PNG.

    `model` must use eager attention, the only implementation that returns the weights.
    """
    inputs = tokenizer(sentence, truncation=True, return_tensors="pt")
    output = model.generate(**inputs, do_sample=False)
    with torch.no_grad():
        layers = model(**inputs, decoder_input_ids=output[:, :-1], output_attentions=True).cross_attentions
    weights = [layer[0].mean(dim=0) for layer in layers]  # means over heads, [target_len, source_len]
    layer = max(range(len(weights)), key=lambda index: float(weights[index].amax(dim=-1).mean()))
    rows, columns = cross_attention_labels(tokenizer, inputs["input_ids"][0], output[0])
    draw_heat_map(
        weights[layer],
        rows=rows,
        columns=columns,
        title=f"Cross-attention, layer {layer}, mean of {layers[0].shape[1]} heads",
        labels=("source token (key)", "predicted token (query)"),
        path=path,
    )


def draw_heat_map(
    weights: Tensor, rows: Sequence[str], columns: Sequence[str], title: str, labels: tuple[str, str], path: Path
) -> None:
    """Plot `weights` in [0, 1], `[rows, columns]`, as a PNG and an SVG. `labels` are those of columns and rows."""
    figure = Figure(figsize=(max(5.0, 2.5 + 0.55 * len(columns)), 1.8 + 0.42 * len(rows)), layout="constrained")
    axes = figure.subplots()
    cells = axes.pcolormesh(weights.numpy(), cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=1.5)
    # Tokens may contain dollar signs, which matplotlib would parse as a formula.
    axes.set_xticks(cell_centers(columns), columns, rotation=45, ha="left", rotation_mode="anchor", parse_math=False)
    axes.set_yticks(cell_centers(rows), rows, parse_math=False)
    axes.invert_yaxis()
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set_xlabel(labels[0], fontsize=11)
    axes.set_ylabel(labels[1], fontsize=11)
    axes.tick_params(length=0, labelsize=11)
    axes.spines[:].set_visible(False)
    axes.set_title(title, loc="left", fontweight="bold", fontsize=11, pad=12)
    figure.colorbar(cells, ax=axes, label="attention weight", shrink=0.8, pad=0.02).outline.set_visible(False)
    save_figure(figure, path)


def format_axes(axes: Axes, title: str, grid: bool = True) -> None:
    """Add a title and, unless `grid` is false, horizontal lines behind the data; remove the upper and right borders."""
    axes.set_title(title, fontsize=11, fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    if grid:
        axes.grid(axis="y", color=GRID_COLOR)
        axes.set_axisbelow(True)


def cell_centers(cells: Sequence[str]) -> list[float]:
    return [index + 0.5 for index in range(len(cells))]
