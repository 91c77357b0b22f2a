"""What libraries raise where a saved folder is not as it should be, as one sentence for people."""

from collections.abc import Iterator
from contextlib import contextmanager

from safetensors import SafetensorError

# What transformers and safetensors are known to raise for files that are missing, damaged or another model's.
UNREADABLE = (OSError, ValueError, RuntimeError, SafetensorError)


def first_line(error: Exception) -> str:
    """The error's message, without the advice and the tables that follow in some."""
    return str(error).strip().partition("\n")[0]


@contextmanager
def refusing(sentence: str) -> Iterator[None]:
    """Raise what reading a folder ends in as a `ValueError` of this sentence and the reason."""
    try:
        yield
    except UNREADABLE as error:
        raise ValueError(f"{sentence}: {first_line(error)}") from error
    except ImportError as error:  # a tokenizer's package, with advice that starts on the line of its name
        raise ValueError(f"{sentence}: {first_line(error).partition('. ')[0]}.") from error
