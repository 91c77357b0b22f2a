"""How a walk through the model is shown in a terminal: text in two languages, aligned matrices, check marks."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.columns import Columns
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text
from torch import Tensor

TEXTS = tomllib.loads((Path(__file__).parent / "walkthrough_texts.toml").read_text(encoding="utf-8"))
LANGUAGES = ("en", "zh")
MOST_ROWS = 12  # of a long sentence
PLAIN_MARKS = {True: "[ok]", False: "[differs]"}
MARKS = {True: "✓", False: "✗"}
COLORS = {True: "bold green", False: "bold red"}


@dataclass
class Display:
    """Prints to a terminal, and counts what agreed with the seed.

    Attributes:
        lang: `"en"` or `"zh"`.
        plain: neither colour nor lines, for files and screen readers.
        columns: of a wide matrix, how many to show.
        checks: the name of each result compared, and whether it agreed.
        station: where in the walk we are, whose texts are shown.
    """

    lang: str = "en"
    plain: bool = False
    columns: int = 10
    checks: dict[str, bool] = field(default_factory=dict)
    station: str = ""

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"no_color": True, "force_terminal": False} if self.plain else {}
        self.console = Console(markup=False, emoji=False, highlight=False, **options)

    def words(self, key: str, **values: Any) -> str:
        """The text `station.key`, in the reader's language."""
        station, _, name = key.rpartition(".")
        return TEXTS[station][name][self.lang].format(**values)

    def begin(self, station: str, **values: Any) -> None:
        """The title of a station, and what is to be said before its numbers."""
        self.station = station
        title = self.words(f"{station}.title", **values)
        self.console.print()
        if self.plain:
            self.console.print(f"== {title}")
        else:
            self.console.rule(Text(title, style="bold cyan"), align="left", style="cyan")
        if "text" in TEXTS[station]:
            self.say("text")

    def say(self, key: str, **values: Any) -> None:
        """Another text of this station."""
        self.console.print(self.words(f"{self.station}.{key}", **values))

    def note(self, **values: Any) -> None:
        """Where the seed is wrong or loose at this station, and what is right."""
        text = Text.assemble((self.words("labels.wrong"), "bold yellow"), self.words(f"{self.station}.note", **values))
        self.console.print(Padding(text, (0, 0, 1, 2)))

    def array(self, name: str, ours: Tensor, formula: str = "", rows: Sequence[str] = ()) -> None:
        """An array of ours by itself."""
        self.block(name, formula, [self.labelled("", ours, rows)])

    def compare(
        self,
        name: str,
        ours: Tensor,
        printed: Any,
        formula: str = "",
        tolerance: float = 6e-9,
        rows: Sequence[str] = (),
    ) -> bool:
        """An array of ours beside the seed's, with a check mark if they agree.

        Args:
            name: what it is called.
            ours: what the model computed.
            printed: what the seed prints, of the same number of values.
            formula: how it comes about.
            tolerance: half of the last digit that the seed prints, or nine digits of a large number if that is more.
            rows: what to write before each row.
        """
        ours = ours.detach().double()
        seed = torch.tensor(printed, dtype=torch.float64)
        agree = ours.numel() == seed.numel() and bool(
            torch.isclose(
                ours.flatten(), seed.flatten(), rtol=5e-9, atol=tolerance if seed.abs().max() > 1e-6 else 0
            ).all()
        )
        self.checks[name] = agree
        both = [(self.words("labels.ours"), ours.reshape(seed.shape)), (self.words("labels.seed"), seed)]
        self.block(name, formula, [self.labelled(label, values, rows) for label, values in both], agree)
        return agree

    def compare_words(self, name: str, ours: Any, printed: Any) -> bool:
        """The same for something that is no array."""
        self.checks[name] = ours == printed
        both = [Text(f"{self.words(f'labels.{name}')}: {value}") for name, value in (("ours", ours), ("seed", printed))]
        self.block(name, "", both, ours == printed)
        return self.checks[name]

    def block(self, name: str, formula: str, parts: list[Any], agree: bool | None = None) -> None:
        head = Text.assemble((name, "bold"), f" = {formula}" if formula else "")
        if agree is not None:
            head.append("  " + (PLAIN_MARKS if self.plain else MARKS)[agree], style=COLORS[agree])
        self.console.print(Padding(head, (0, 0, 0, 2)))
        self.console.print(Padding(Columns(parts, padding=(0, 4)), (0, 0, 1, 4)))

    def labelled(self, label: str, values: Tensor, rows: Sequence[str]) -> Table:
        """A matrix with a label on top and names before its rows; wide ones are cut."""
        grid = Table.grid(padding=(0, 1))
        if label:
            grid.add_row(*([""] if rows else []), Text(label, style="dim"))
        lines = matrix(values[:MOST_ROWS] if values.dim() > 1 else values, self.columns)
        names = [*rows[: len(lines)], *[""] * (len(lines) - len(rows))]
        for name, line in zip(names, lines, strict=True):
            grid.add_row(*([name] if rows else []), line)
        if values.dim() > 1 and len(values) > MOST_ROWS:
            grid.add_row("…")
        return grid

    def table(self, columns: str, rows: Sequence[Sequence[Any]]) -> None:
        """A table, whose columns' names are the text of that key, between `|`."""
        table = Table(*self.words(columns).split(" | "), box=None if self.plain else box.SIMPLE_HEAD)
        for row in rows:
            table.add_row(*map(str, row))
        self.console.print(table)

    def verdict(self) -> bool:
        """Say how many results agreed; whether all did."""
        differing = [name for name, agree in self.checks.items() if not agree]
        counts = {"count": len(self.checks), "good": len(self.checks) - len(differing)}
        self.say("differ" if differing else "agree", names=", ".join(differing), **counts)
        return not differing


def matrix(values: Tensor, columns: int) -> list[str]:
    """The rows of a matrix, or a vector as one row, in columns that align; `…` stands for those that are left out."""
    values = values.detach()
    if values.dim() == 1:
        values = values[None]
    cut = values.shape[-1] > columns
    numbers = values[..., :columns].double() if values.is_floating_point() else values[..., :columns]
    text = np.array2string(numbers.cpu().numpy(), max_line_width=10_000, threshold=10**6, precision=8)
    lines = [line.strip().strip("[]") for line in text.splitlines()]
    width = max(map(len, lines))
    return [f"[{line:{width}}{' …' if cut else ''}]" for line in lines]
