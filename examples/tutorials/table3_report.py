"""The results beside the paper's Table 3, as a Markdown table and a plot."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from modeling_random_transformer.base.files import write_atomically
from modeling_random_transformer.base.markdown import markdown_table

from .report import BLUE, GRAY, GRID_COLOR, ORANGE, save_figure
from .table3_rows import ROWS
from .table3_runs import Result

MISSING = "–"
METRICS = {"perplexity": (2, "perplexity"), "bleu": (1, "BLEU")}  # decimals and name


class Table3:
    """Means and ranges over the seeds of each row, and differences from the base model.

    Args:
        results: the results of all rows and seeds so far.
        diverged: row and seed of each run that diverged.
    """

    def __init__(self, results: Sequence[Result], diverged: Sequence[tuple[str, int]] = ()):
        by_row = {name: [result for result in results if result.row == name] for name in ROWS}
        self.results = {name: by_seed for name, by_seed in by_row.items() if by_seed}
        self.diverged = Counter(name for name, _ in diverged)

    def values(self, row: str, metric: str) -> list[float]:
        """A metric of a row, by seed."""
        return [getattr(result, metric) for result in self.results[row]]

    def difference(self, row: str, metric: str) -> float | None:
        """The difference of the means of a row and of the base model; `None` if one of them has no result."""
        if "base" not in self.results or row not in self.results:
            return None
        return mean(self.values(row, metric)) - mean(self.values("base", metric))

    def markdown(self) -> str:
        """The table. Differences from the base model are in columns Δ, the ranges over the seeds in parentheses."""
        header = ["row", "change", "parameters", "seeds"]
        for _, name in METRICS.values():
            header += [name, "Δ", f"paper: {name}", "Δ"]
        rows = [self._cells(name) for name in ROWS if name in self.results or name in self.diverged]
        return markdown_table(tuple(header), rows)

    def _cells(self, name: str) -> tuple[str, ...]:
        results, diverged = self.results.get(name, []), self.diverged[name]
        parameters = f"{results[0].parameters:,}" if results else MISSING
        seeds = f"{len(results)}, {diverged} diverged" if diverged else str(len(results))
        cells = [name, ROWS[name].change or MISSING, parameters, seeds]
        for metric, (decimals, _) in METRICS.items():
            paper, base = (getattr(ROWS[row], metric) for row in (name, "base"))
            measured_difference = None if name == "base" else self.difference(name, metric)
            cells += [
                _with_range(self.values(name, metric), decimals) if results else "diverged",
                _signed(measured_difference, decimals),
                f"{paper:.{decimals}f}",
                _signed(None if name == "base" else paper - base, decimals),
            ]
        return tuple(cells)

    def figure(self) -> Figure | None:
        """A plot of the differences from the base model beside those of the paper; `None` without differences."""
        rows = [name for name in self.results if name != "base"]
        if not rows or "base" not in self.results:
            return None
        figure = Figure(figsize=(10, 1.6 + 0.32 * len(rows)), layout="constrained")
        for axes, (metric, (_, label)) in zip(figure.subplots(1, 2, sharey=True), METRICS.items(), strict=True):
            self._draw_differences(axes, rows, metric)
            axes.axvline(0, color=GRAY, linestyle=":")
            axes.set_title(f"Δ {label} from the base model", loc="left", fontweight="bold")
            axes.set_yticks(range(len(rows)), [ROWS[name].change for name in rows])
            axes.grid(axis="x", color=GRID_COLOR)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].invert_yaxis()
        figure.axes[0].legend(frameon=False)
        return figure

    def _draw_differences(self, axes: Axes, rows: list[str], metric: str) -> None:
        base = mean(self.values("base", metric))
        values = [[value - base for value in self.values(name, metric)] for name in rows]
        paper = [getattr(ROWS[name], metric) - getattr(ROWS["base"], metric) for name in rows]
        positions = range(len(rows))
        axes.plot(list(map(mean, values)), positions, "o", color=BLUE, label="here")
        if any(len(by_seed) > 1 for by_seed in values):
            ranges = list(map(min, values)), list(map(max, values))
            axes.hlines(positions, *ranges, colors=BLUE, linewidth=2, label="range of seeds")
        axes.plot(paper, positions, "D", color=ORANGE, label="paper")


def write_report(table: Table3, settings: str, folder: Path) -> None:
    """Write `table3.md`, and `table3.png` if there are differences from the base model.

    Args:
        table: the results so far.
        settings: what all rows have in common, in Markdown.
        folder: the output folder.
    """
    text = (
        f"Rows of the paper's Table 3. Arguments that are not listed have their defaults.\n\n{settings}\n\n"
        "Means over the seeds on the validation set, with their ranges in parentheses. Δ is the difference from the "
        "base model. Perplexities are per token of the vocabulary. The paper's rows were trained on WMT 2014 English "
        f"to German, and scored on newstest2013 with tokenized BLEU.\n\n{table.markdown()}\n"
    )
    write_atomically(folder / "table3.md", [text.encode()])
    figure, path = table.figure(), folder / "table3.png"
    if figure is None:
        for old_figure in (path, path.with_suffix(".svg")):
            old_figure.unlink(missing_ok=True)  # may be left by an earlier call with other rows
    else:
        save_figure(figure, path)


def _with_range(values: Sequence[float], decimals: int) -> str:
    text = f"{mean(values):.{decimals}f}"
    return text if len(values) < 2 else f"{text} ({min(values):.{decimals}f} to {max(values):.{decimals}f})"


def _signed(difference: float | None, decimals: int) -> str:
    return MISSING if difference is None else f"{difference:+.{decimals}f}"
