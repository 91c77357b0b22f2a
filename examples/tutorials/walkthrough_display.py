"""Terminal output of the walkthrough: text in two languages, aligned matrices, check marks."""

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
MAX_ROWS = 12  # rows of a matrix that are shown for a long sentence
PLAIN_MARKS = {True: "[ok]", False: "[differs]"}
MARKS = {True: "✓", False: "✗"}
COLORS = {True: "bold green", False: "bold red"}


@dataclass
class Display:
    """Prints the walkthrough, and records which results agree with the blog post.

    Attributes:
        lang: `"en"` or `"zh"`.
        plain: no colors or lines, for files and screen readers.
        columns: maximum number of columns of a matrix.
        checks: whether each result agrees, by its name.
        section: the current section, a key of `TEXTS`.
    """

    lang: str = "en"
    plain: bool = False
    columns: int = 10
    checks: dict[str, bool] = field(default_factory=dict)
    section: str = ""

    def __post_init__(self) -> None:
        options: dict[str, Any] = {"no_color": True, "force_terminal": False} if self.plain else {}
        self.console = Console(markup=False, emoji=False, highlight=False, **options)

    def text(self, key: str, **values: Any) -> str:
        """The text `section.key` in the chosen language."""
        section, _, name = key.rpartition(".")
        return TEXTS[section][name][self.lang].format(**values)

    def begin(self, section: str, **values: Any) -> None:
        """Print the title and the introduction of a section."""
        self.section = section
        title = self.text(f"{section}.title", **values)
        self.console.print()
        if self.plain:
            self.console.print(f"== {title}")
        else:
            self.console.rule(Text(title, style="bold cyan"), align="left", style="cyan")
        if "text" in TEXTS[section]:
            self.print("text")

    def print(self, key: str, **values: Any) -> None:
        """Print a text of the current section."""
        self.console.print(self.text(f"{self.section}.{key}", **values))

    def note(self, **values: Any) -> None:
        """Print the error in the current section of the blog post, and the correct computation."""
        text = Text.assemble(
            (self.text("labels.correction"), "bold yellow"), self.text(f"{self.section}.note", **values)
        )
        self.console.print(Padding(text, (0, 0, 1, 2)))

    def array(self, name: str, ours: Tensor, formula: str = "", rows: Sequence[str] = ()) -> None:
        """Print an array that is not in the blog post."""
        self.block(name, formula, [self.matrix_grid("", ours, rows)])

    def compare(
        self,
        name: str,
        ours: Tensor,
        printed: Any,
        formula: str = "",
        tolerance: float = 6e-9,
        rows: Sequence[str] = (),
    ) -> bool:
        """Print an array next to that of the blog post, with a check mark if they agree. Returns whether they agree.

        Args:
            name: the name of the result.
            ours: the model's values.
            printed: the blog post's values, in any shape of the same size.
            formula: how the result is computed.
            tolerance: half of the last printed digit; the relative tolerance is half of the ninth digit.
            rows: a label for each row.
        """
        ours = ours.detach().double()
        expected = torch.tensor(printed, dtype=torch.float64)
        atol = tolerance if expected.abs().max() > 1e-6 else 0
        agree = ours.numel() == expected.numel() and torch.allclose(
            ours.flatten(), expected.flatten(), rtol=5e-9, atol=atol
        )
        self.checks[name] = agree
        both = [(self.text("labels.ours"), ours.reshape(expected.shape)), (self.text("labels.blog"), expected)]
        self.block(name, formula, [self.matrix_grid(label, values, rows) for label, values in both], agree)
        return agree

    def compare_values(self, name: str, ours: Any, printed: Any) -> bool:
        """Print a value that is not an array next to that of the blog post."""
        self.checks[name] = ours == printed
        both = [
            Text(f"{self.text(f'labels.{label}')}: {value}") for label, value in (("ours", ours), ("blog", printed))
        ]
        self.block(name, "", both, ours == printed)
        return self.checks[name]

    def block(self, name: str, formula: str, parts: list[Any], agree: bool | None = None) -> None:
        head = Text.assemble((name, "bold"), f" = {formula}" if formula else "")
        if agree is not None:
            head.append("  " + (PLAIN_MARKS if self.plain else MARKS)[agree], style=COLORS[agree])
        self.console.print(Padding(head, (0, 0, 0, 2)))
        self.console.print(Padding(Columns(parts, padding=(0, 4)), (0, 0, 1, 4)))

    def matrix_grid(self, label: str, values: Tensor, rows: Sequence[str]) -> Table:
        """A matrix with a title and row labels, truncated to `MAX_ROWS` rows and `columns` columns."""
        grid = Table.grid(padding=(0, 1))
        if label:
            grid.add_row(*([""] if rows else []), Text(label, style="dim"))
        lines = matrix_lines(values[:MAX_ROWS] if values.dim() > 1 else values, self.columns)
        names = [*rows[: len(lines)], *[""] * (len(lines) - len(rows))]
        for name, line in zip(names, lines, strict=True):
            grid.add_row(*([name] if rows else []), line)
        if values.dim() > 1 and len(values) > MAX_ROWS:
            grid.add_row("…")
        return grid

    def table(self, columns: str, rows: Sequence[Sequence[Any]]) -> None:
        """Print a table; `columns` is the key of the column names, which are separated by `|`."""
        table = Table(*self.text(columns).split(" | "), box=None if self.plain else box.SIMPLE_HEAD)
        for row in rows:
            table.add_row(*map(str, row))
        self.console.print(table)

    def summary(self) -> bool:
        """Print how many results agree. Returns whether all do."""
        differing = [name for name, agree in self.checks.items() if not agree]
        counts = {"count": len(self.checks), "good": len(self.checks) - len(differing)}
        self.print("differ" if differing else "agree", names=", ".join(differing), **counts)
        return not differing


def matrix_lines(values: Tensor, columns: int) -> list[str]:
    """One line per row of a matrix, or one for a vector, with aligned columns; `…` marks omitted columns."""
    values = values.detach()
    if values.dim() == 1:
        values = values[None]
    cut = values.shape[-1] > columns
    numbers = values[..., :columns].double() if values.is_floating_point() else values[..., :columns]
    text = np.array2string(numbers.cpu().numpy(), max_line_width=10_000, threshold=10**6, precision=8)
    lines = [line.strip().strip("[]") for line in text.splitlines()]
    width = max(map(len, lines))
    return [f"[{line:{width}}{' …' if cut else ''}]" for line in lines]
