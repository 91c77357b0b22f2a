"""Texts as lines of a file. `utils/text.py` reads them."""

from collections.abc import Iterable, Iterator

from ..utils.text import LINE_BREAK


def one_line(text: str) -> str:
    """Replace each line break (`\\n`, `\\r` or `\\r\\n`) by a space."""
    return LINE_BREAK.sub(" ", text)


def encode_lines(texts: Iterable[str]) -> Iterator[bytes]:
    """Encode each text as exactly one line of UTF-8."""
    for text in texts:
        yield f"{one_line(text)}\n".encode()
