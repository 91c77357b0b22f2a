"""Tables in Markdown."""

from collections.abc import Iterable
from typing import Any


def markdown_table(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """A table with a header line; `|` in cells must be escaped."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
