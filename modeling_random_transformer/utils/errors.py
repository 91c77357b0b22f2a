"""One-line error messages, including those of exceptions from other libraries."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

# Exceptions that transformers and safetensors raise for files that are missing, damaged or from another model.
UNREADABLE = (OSError, ValueError, RuntimeError, SafetensorError)


def first_line(error: Exception) -> str:
    """The first line of the error's message; some libraries append advice and tables."""
    return str(error).strip().partition("\n")[0]


def format_names(names: Iterable[str], shown: int = 5) -> str:
    """Join the first names with commas and count the others: `"a, b, c, d, e and 3 more"`."""
    listed = list(names)
    more = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return ", ".join(listed[:shown]) + more


@contextmanager
def reraise_as_value_error(message: str) -> Iterator[None]:
    """Convert exceptions from reading a saved folder to a `ValueError` with this message, followed by the cause."""
    try:
        yield
    except UNREADABLE as error:
        raise ValueError(f"{message}: {first_line(error)}") from error
    except ImportError as error:  # a tokenizer's optional dependency; advice follows on the same line
        raise ValueError(f"{message}: {first_line(error).partition('. ')[0]}.") from error
