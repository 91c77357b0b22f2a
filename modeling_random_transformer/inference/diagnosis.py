"""Finds the file and the field of a saved folder that cause an error.

Exceptions from libraries rarely name them. A field is found by elimination: it is invalid if the file can be read
without it.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

TOKENIZER = "tokenizer.json"
# "model" of tokenizer.json is required, so it is replaced instead of removed.
EMPTY_VOCABULARY = {"type": "BPE", "vocab": {}, "merges": []}

Location = tuple[str, str | None]  # a file and a field


@contextmanager
def name_file_in_errors(file: str, locate: Callable[[], Location | None] = lambda: None) -> Iterator[None]:
    """Convert any exception from a library to a one-line `ValueError` that names the file and, if known, the field.

    The exceptions have no common base class: TypeError, KeyError, plain Exception, panics of tokenizers.

    Args:
        file: the file that is read.
        locate: called after an exception, to find the invalid field and its file.
    """
    try:
        yield
    except BaseException as error:
        if not is_library_error(error):
            raise
        reason = summarize(error)
        file, field = locate() or (file, None)
        named = field is None or field in reason
        raise ValueError(f"{file}: {reason if named else f'{field} is not valid: {reason}'}") from error


def locate_field(folder: Path, name: str, read: Callable[[Path], Any]) -> Location | None:
    """The field whose removal makes a JSON file of the folder readable; `None` if there is no such field.

    Args:
        folder: the folder for which `read` may fail.
        name: the JSON file.
        read: called with copies of the folder in which the file lacks one field.
    """
    if not fails(read, folder):  # another file is invalid
        return None
    content = read_object(folder / name)
    with TemporaryDirectory() as scratch:
        copy = Path(scratch)
        for file in folder.iterdir():
            if file.name != name and file.is_file():
                (copy / file.name).symlink_to(file.resolve())

        def is_accepted(remaining: dict[str, Any]) -> bool:
            if name == TOKENIZER and "model" in content:
                remaining.setdefault("model", EMPTY_VOCABULARY)
            (copy / name).write_text(json.dumps(remaining), encoding="utf-8")
            return not fails(read, copy)

        field = eliminate_field(content, is_accepted)
    return (name, field) if field else None


def eliminate_field(content: dict[str, Any], is_accepted: Callable[[dict[str, Any]], bool]) -> str | None:
    """The first field whose removal makes the content readable."""
    for field in content:
        if is_accepted({name: value for name, value in content.items() if name != field}):
            return field
    return None


def read_object(file: Path) -> dict[str, Any]:
    """Read a file that contains a JSON object.

    Raises:
        ValueError: the file cannot be read or has other content; the message names it.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(f"{file.name} must contain a JSON object, got arrays or objects nested too deeply.") from error
    except OSError as error:
        raise ValueError(f"{file.name} must be a readable file: {error.strerror}.") from error
    except ValueError as error:
        raise ValueError(f"{file.name} must contain a JSON object in UTF-8: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} must contain a JSON object, got {shorten(content)}.")
    return content


def fails(function: Callable[[Any], Any], argument: Any) -> bool:
    """Whether a call raises an exception from a library."""
    try:
        function(argument)
    except BaseException as error:
        if not is_library_error(error):
            raise
        return True
    return False


def is_library_error(error: BaseException) -> bool:
    """Whether an exception is caused by the content of a file, as opposed to `KeyboardInterrupt` and `SystemExit`."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def summarize(error: BaseException) -> str:
    """The message of an exception in one line, without advice; with the class if the message is unclear."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{lines[0]} {lines[1].strip()}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    text = shorten(text, 300, str)
    if isinstance(error, ImportError):  # a tokenizer's optional dependency; advice follows on the same line
        return f"{text.partition('. ')[0]}."
    if isinstance(error, ValueError | OSError | RuntimeError) and text:
        return text
    return f"{type(error).__name__}: {text}"


def shorten(value: Any, length: int = 60, to_text: Callable[[Any], str] = repr) -> str:
    """The value as text, at most `length` characters of it."""
    text = to_text(value)
    return text if len(text) <= length else f"{text[:length]}…"
