"""Texts as lines, and tables. `read_lines` is in `tokenization_random_transformer`."""

import re
from collections.abc import Iterable, Iterator
from typing import Any

NOT_IN_LINES = re.compile(r"\r\n|[\r\n\0]")


def one_line(text: str) -> str:
    """Replace each line break (`\\n`, `\\r` or `\\r\\n`) and each NUL character by a space."""
    return NOT_IN_LINES.sub(" ", text)


def encode_lines(texts: Iterable[str]) -> Iterator[bytes]:
    """Encode each text as exactly one line of UTF-8."""
    for text in texts:
        yield f"{one_line(text)}\n".encode()


def markdown_table(header: tuple[str, ...], rows: Iterable[tuple[Any, ...]]) -> str:
    """A table with a header line; `|` in cells must be escaped."""
    lines = [header, ("---",) * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)
