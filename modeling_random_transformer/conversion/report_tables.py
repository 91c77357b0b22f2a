"""Formats a `ConversionReport` as rich tables. Only this module of the subpackage requires rich."""

import re
from collections.abc import Iterator

from rich.console import Group
from rich.table import Column, Table

from ..utils.errors import format_value, printable
from .report import ConversionReport, MappedWeight

# The index of a layer in the name of a weight: of this model and most others, or of Marian.
LAYER = re.compile(r"(?<=\.layers\.)\d+(?=\.)|(?<=coder_l)\d+(?=_)")


def report_tables(report: ConversionReport) -> Group:
    """Tables of weights and config fields, then the notes. Layers that were converted alike share one row."""
    weights = Table(
        *columns("source", "target", "shape", "how"), title=f"{report.origin}: weights", title_justify="left"
    )
    for row in group_layers(report.mapped):
        weights.add_row(*row)
    for name, reason in report.defaults.items():
        weights.add_row("—", name, "", reason)
    for name, reason in report.unused.items():
        weights.add_row(name, "—", "", reason)
    config = Table(*columns("field", "value", "derived from"), title="config", title_justify="left")
    for name, derived in report.config.items():
        config.add_row(name, format_value(derived.value), derived.source)
    return Group(weights, config, *(f"• {printable(note)}" for note in report.notes))


def columns(*headers: str) -> list[Column]:
    """Columns that wrap long names instead of truncating them."""
    return [Column(header, overflow="fold") for header in headers]


def group_layers(mapped: list[MappedWeight]) -> Iterator[tuple[str, str, str, str]]:
    """Rows of the table of weights. Rows that differ only in the layer index are merged into a range, as `0–5`."""
    layers: dict[tuple[str, str, str, str], list[tuple[str, str]]] = {}
    for weight in mapped:
        names = (weight.source, weight.target)
        source, target = (LAYER.sub("{}", name, count=1) for name in names)
        source_index, target_index = (match[0] if (match := LAYER.search(name)) else "" for name in names)
        row = (source, target, " × ".join(map(str, weight.shape)), weight.how)
        layers.setdefault(row, []).append((source_index, target_index))
    for (source, target, shape, how), indices in layers.items():
        spans = [
            first if first == last else f"{first}–{last}" for first, last in zip(indices[0], indices[-1], strict=True)
        ]
        yield source.replace("{}", spans[0]), target.replace("{}", spans[1]), shape, how
