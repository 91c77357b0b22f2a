"""The results beside the paper's Table 3, as a Markdown table and a plot."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure

from modeling_random_transformer.utils.atomic_files import write_atomically
from modeling_random_transformer.utils.tables import markdown_table

from .report import BLUE, GRAY, GRID_COLOR, ORANGE
from .table3_rows import ROWS
from .table3_runs import Result

MISSING = "–"
METRICS = {"perplexity": (2, "perplexity"), "bleu": (1, "BLEU")}  # decimals and name


class Table3:
    """Means and ranges over the seeds of each row, and differences from the base model.

    Args:
        results: the results of all rows and seeds so far.
    """

    def __init__(self, results: Sequence[Result]):
        self.results = {name: [result for result in results if result.row == name] for name in ROWS}
        self.results = {name: by_seed for name, by_seed in self.results.items() if by_seed}

    def values(self, row: str, metric: str) -> list[float]:
        """A metric of a row, by seed."""
        return [getattr(result, metric) for result in self.results.get(row, ())]

    def mean(self, row: str, metric: str) -> float:
        """The mean over the seeds."""
        values = self.values(row, metric)
        return sum(values) / len(values)

    def difference(self, row: str, metric: str) -> float | None:
        """The difference of the means of a row and of the base model; `None` without a base model."""
        return self.mean(row, metric) - self.mean("base", metric) if "base" in self.results else None

    def markdown(self) -> str:
        """The table. Differences from the base model are in columns Δ, the ranges over the seeds in parentheses."""
        header = ["row", "change", "parameters", "seeds"]
        for _, name in METRICS.values():
            header += [name, "Δ", f"paper: {name}", "Δ"]
        rows = []
        for name, by_seed in self.results.items():
            cells = [name, ROWS[name].change or MISSING, f"{by_seed[0].parameters:,}", len(by_seed)]
            for metric, (decimals, _) in METRICS.items():
                paper, base = (getattr(ROWS[row], metric) for row in (name, "base"))
                own = self.difference(name, metric) if name != "base" else None
                cells += [
                    _with_range(self.mean(name, metric), self.values(name, metric), decimals),
                    _signed(own, decimals),
                    f"{paper:.{decimals}f}",
                    _signed(None if name == "base" else paper - base, decimals),
                ]
            rows.append(tuple(cells))
        return markdown_table(tuple(header), rows)

    def draw(self, path: Path) -> None:
        """Plot the differences from the base model beside those of the paper, as a PNG."""
        rows = [name for name in self.results if name != "base"]
        figure = Figure(figsize=(10, 1.6 + 0.32 * len(rows)), layout="constrained")
        for axes, (metric, (_, label)) in zip(figure.subplots(1, 2, sharey=True), METRICS.items(), strict=True):
            base = self.mean("base", metric)
            for position, name in enumerate(rows):
                values = [value - base for value in self.values(name, metric)]
                paper = getattr(ROWS[name], metric) - getattr(ROWS["base"], metric)
                axes.plot([min(values), max(values)], [position] * 2, color=BLUE, linewidth=2)
                first = position == 0
                axes.plot(
                    self.difference(name, metric), position, "o", color=BLUE, label="here, range of seeds" * first
                )
                axes.plot(paper, position, "D", color=ORANGE, label="paper" * first)
            axes.axvline(0, color=GRAY, linestyle=":")
            axes.set_title(f"Δ {label} from the base model", loc="left", fontweight="bold")
            axes.set_yticks(range(len(rows)), rows)
            axes.grid(axis="x", color=GRID_COLOR)
            axes.spines[["top", "right"]].set_visible(False)
        figure.axes[0].invert_yaxis()
        if rows:
            figure.axes[0].legend(frameon=False)
        figure.savefig(path, dpi=160)


def write_report(results: Sequence[Result], scale: str, folder: Path) -> None:
    """Write `table3.md`, and `table3.png` if the base model has been trained.

    Args:
        results: the results so far.
        scale: what all rows have in common, for the first line.
        folder: the output folder.
    """
    table = Table3(results)
    text = (
        f"{scale}\n\nMeans over the seeds on the validation set, with their ranges in parentheses. Δ is the difference "
        "from the base model. Perplexities are per token of the vocabulary. The paper's rows were trained on WMT 2014 "
        f"English to German, and scored on newstest2013 with tokenized BLEU.\n\n{table.markdown()}\n"
    )
    write_atomically(folder / "table3.md", [text.encode()])
    if "base" in table.results:
        table.draw(folder / "table3.png")


def _with_range(mean: float, values: Sequence[float], decimals: int) -> str:
    text = f"{mean:.{decimals}f}"
    return text if len(values) < 2 else f"{text} ({min(values):.{decimals}f} to {max(values):.{decimals}f})"


def _signed(difference: float | None, decimals: int) -> str:
    return MISSING if difference is None else f"{difference:+.{decimals}f}"
