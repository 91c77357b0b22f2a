"""Text in Markdown, for reports and model cards."""

from collections.abc import Iterable
from typing import Any


def markdown_table(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """A table with a header line; `|` in cells must be escaped."""
    lines = [" | ".join(map(str, cells)) for cells in (header, ["---"] * len(header), *rows)]
    return "\n".join(f"| {line} |" for line in lines)
