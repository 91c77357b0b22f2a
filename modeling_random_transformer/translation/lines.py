"""Texts as lines of UTF-8. Only a line feed ends a line, so that a file has the lines that `wc -l` counts.

`str.splitlines()` would also split at U+2028, at a form feed and at other characters that occur within texts.
"""

import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..utils.files import naming_path

LINE_BREAK = re.compile(r"\r\n|\r|\n")


def read_lines(file: Iterable[bytes], name: str = "the file", first: int = 1) -> Iterator[str]:
    """The lines of a UTF-8 file opened in binary mode, without their line feeds and carriage returns.

    Args:
        file: a binary file, or any iterable of its lines.
        name: what to call it in an error.
        first: the number of its first line.

    Raises:
        ValueError: a line is not UTF-8; the message gives its number.
    """
    for number, line in enumerate(file, start=first):
        yield decode_line(line, name, number)


def decode_line(line: bytes, name: str, number: int) -> str:
    """One line; from the first of a file, a byte order mark is taken away."""
    try:
        return line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{name} must be UTF-8 text, but line {number} is not: {error}.") from error


def one_line(text: str) -> str:
    """The text with spaces for its line breaks (line feeds, carriage returns), so that it is one line of a file."""
    return LINE_BREAK.sub(" ", text)


def encode_lines(texts: Iterable[str]) -> Iterator[bytes]:
    """Each text as exactly one line of UTF-8, with its line feed."""
    for text in texts:
        yield f"{one_line(text)}\n".encode()


def write_atomically(path: Path, content: Iterable[bytes], temporary_folder: Path | None = None) -> None:
    """Write a file that has all its content as soon as it has its name, whenever the process may be killed.

    Args:
        path: the file to write or to replace; of a link, what it leads to.
        content: what to put into it, piece after piece.
        temporary_folder: where it lies until it is complete, on the same file system; beside `path` when `None`.
    """
    path = Path(os.path.realpath(path))
    temporary = (temporary_folder or path.parent) / f"{path.name}.{secrets.token_hex(4)}.tmp"
    try:
        with naming_path(path), open(temporary, "xb") as file:
            file.writelines(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
