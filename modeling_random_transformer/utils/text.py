"""Lines of UTF-8 text, and tables. Only a line feed ends a line, so a file has the lines that `wc -l` counts.

`str.splitlines()` also splits at U+2028, at form feeds and at other characters that occur within a text.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Any

LINE_BREAK = re.compile(r"\r\n|\r|\n")


def read_lines(file: Iterable[bytes], name: str = "the file", first: int = 1) -> Iterator[str]:
    """Decode the lines of a UTF-8 file, without their line feeds, carriage returns and byte order mark.

    Args:
        file: a file opened in binary mode, or any other iterable of lines.
        name: name of the file in error messages.
        first: number of the first line.

    Raises:
        ValueError: a line is not UTF-8; the message gives its number.
    """
    for number, line in enumerate(file, start=first):
        try:
            yield line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{name} must be UTF-8 text, but line {number} is not: {error}.") from error


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
