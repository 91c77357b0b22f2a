"""Writing texts as lines of UTF-8, and files atomically. Reading is in `utils/text.py`."""

import os
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

from ..utils.files import naming_path
from ..utils.text import LINE_BREAK


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
