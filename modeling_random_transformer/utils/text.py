"""Texts as lines, and tables. `read_lines` is in `tokenization_random_transformer`."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

LINE_BREAK = re.compile(r"\r\n|\r|\n")


def one_line(text: str) -> str:
    """Replace each line break (`\\n`, `\\r` or `\\r\\n`) by a space."""
    return LINE_BREAK.sub(" ", text) if "\n" in text or "\r" in text else text


def encode_lines(texts: Iterable[str]) -> Iterator[bytes]:
    """Encode each text as exactly one line of UTF-8."""
    for text in texts:
        yield f"{one_line(text)}\n".encode()


def markdown_table(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """A table with a header line; `|` in cells must be escaped."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
