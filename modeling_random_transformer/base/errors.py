"""One-line error messages, including those of exceptions from other libraries."""

import reprlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from safetensors import SafetensorError

# Exceptions that transformers and safetensors raise for files that are missing, damaged or from another model.
UNREADABLE = (OSError, ValueError, RuntimeError, SafetensorError)


MAX_MESSAGE = 2000  # characters
MAX_NAME = 200
REPR = reprlib.Repr()
REPR.maxstring = MAX_NAME
REPR.maxlevel = 3


def printable(text: str, limit: int = MAX_MESSAGE) -> str:
    """A text for a terminal: truncated if it is long, and with escaped control characters."""
    shown = text if len(text) <= limit else f"{text[:limit]}…"
    if shown.isprintable():
        return shown
    return "".join(character if character.isprintable() else repr(character)[1:-1] for character in shown)


def format_value(value: Any) -> str:
    """The representation of any value, with the first items of a container."""
    if isinstance(value, int) and abs(value) > sys.maxsize:  # computing its digits may fail or take long
        return "an integer of more than 64 bits"
    return printable(REPR.repr(value), 2 * MAX_NAME)


def first_line(error: BaseException) -> str:
    """The first line of the error's message, and the second after a colon; some libraries append advice and tables."""
    first, *following = map(str.strip, str(error).strip().splitlines() or [""])
    if first.endswith(":") and following:
        first = f"{first} {following[0]}"
    return printable(first, 500)


def format_names(names: Iterable[str], shown: int = 5) -> str:
    """Join the first names with commas and count the others: `"a, b, c, d, e and 3 more"`."""
    printed = [printable(name, MAX_NAME) for name in names]
    listed = ", ".join(printed[:shown])
    if len(printed) > shown:
        return f"{listed} and {len(printed) - shown} more"
    return listed


@contextmanager
def reraise_as_value_error(message: str) -> Iterator[None]:
    """Convert any exception of a library to a one-line `ValueError` with this message, followed by the cause.

    The exceptions have no common base class: TypeError, KeyError, plain Exception, panics of tokenizers.
    """
    try:
        yield
    except BaseException as error:
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        cause = first_line(error)
        if isinstance(error, ImportError):  # a tokenizer's optional dependency; advice follows on the same line
            cause = f"{cause.partition('. ')[0]}."
        elif not cause or not isinstance(error, UNREADABLE):
            cause = f"{type(error).__name__}: {cause}"
        raise ValueError(f"{message}: {cause}") from error
