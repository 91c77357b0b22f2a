"""A report as rich tables. Needs the package rich, which the rest of the conversion does without."""

import re
from collections.abc import Iterator

from rich.console import Group
from rich.table import Column, Table

from .report import MappedWeight, Report


def report_tables(report: Report) -> Group:
    """Weights, config and notes, one below the other; of layers that were treated alike, one row."""
    weights = Table(*columns("source", "ours", "shape", "how"), title=f"{report.origin}: weights", title_justify="left")
    for row in grouped(report.mapped):
        weights.add_row(*row)
    for name, why in report.filled.items():
        weights.add_row("—", name, "", why)
    for name, why in report.unused.items():
        weights.add_row(name, "—", "", why)
    config = Table(*columns("field", "value", "from"), title="config", title_justify="left")
    for name, derived in report.config.items():
        config.add_row(name, repr(derived.value), derived.source)
    return Group(weights, config, *(f"• {note}" for note in report.notes))


def columns(*headers: str) -> list[Column]:
    """Columns that break long names into lines and never cut them."""
    return [Column(header, overflow="fold") for header in headers]


def grouped(mapped: list[MappedWeight]) -> Iterator[tuple[str, str, str, str]]:
    """The rows of the table of weights, with the first and the last number of layers that differ in nothing else."""
    layers: dict[tuple[str, str, str, str], list[str]] = {}
    for weight in mapped:
        number = re.search(r"\.layers\.(\d+)\.", weight.source)
        pattern = (r"\.layers\.\d+\.", ".layers.{}.")
        row = (re.sub(*pattern, weight.source), re.sub(*pattern, weight.target), shape(weight), weight.how)
        layers.setdefault(row, []).append(number[1] if number else "")
    for (source, target, size, how), numbers in layers.items():
        span = numbers[0] if len(numbers) == 1 else f"{numbers[0]}–{numbers[-1]}"
        yield source.replace("{}", span), target.replace("{}", span), size, how


def shape(weight: MappedWeight) -> str:
    return " × ".join(map(str, weight.shape))
