"""Paths of inputs and outputs, which may be files, pipes, devices or `-`, a standard stream."""

import os
import re
from pathlib import Path

from .files import StrPath

STANDARD_STREAM = "-"
OPEN_FILE = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|\d+)/fd/\d+")


def is_stream(path: StrPath) -> bool:
    """Whether a path is `-`, a pipe, a device or an open file, such as `/dev/stdout`, which cannot be replaced."""
    # An open file may be a regular one, as after a redirection.
    if is_standard_stream(path) or OPEN_FILE.fullmatch(os.fspath(path)):
        return True
    path = Path(path)
    return path.exists() and not path.is_file() and not path.is_dir()


def is_standard_stream(path: StrPath) -> bool:
    """Whether a path is `-`."""
    return os.fspath(path) == STANDARD_STREAM


def stream_name(path: StrPath) -> str:
    """The name of an input in errors."""
    return "stdin" if is_standard_stream(path) else os.fspath(path)


def is_readable(path: StrPath) -> bool:
    """Whether a path is `-` or exists and is not a folder: a file or a pipe."""
    if is_standard_stream(path):
        return True
    path = Path(path)
    return path.exists() and not path.is_dir()


def check_readable(name: str, path: StrPath, *, repeatedly: bool = False) -> None:
    """Check the path of an argument.

    Raises:
        ValueError: the path is neither `-` nor a file or a pipe; or, to read it `repeatedly`, not a file.
    """
    is_valid = Path(path).is_file() if repeatedly else is_readable(path)
    if not is_valid:
        raise ValueError(f"{name} must be a file, got {os.fspath(path)!r}.")


def check_output(name: str, path: StrPath, **inputs: Path | None) -> None:
    """Check the path of an output.

    Args:
        name: name of the argument, for errors.
        path: a file or a stream, see `is_stream`.
        **inputs: files that the output would replace, by the names of their arguments.

    Raises:
        ValueError: the path is a folder, its folder does not exist or cannot be written, or it is one of the inputs.
    """
    if is_stream(path):
        return
    real = Path(os.path.realpath(path))
    if not real.parent.is_dir() or real.is_dir():
        raise ValueError(f"{name} must be a file, new or not, in a folder that exists, got {str(path)!r}.")
    if not os.access(real.parent, os.W_OK):
        raise ValueError(f"{name} must be a file in a folder that can be written, got {str(path)!r}.")
    if not real.exists():
        return
    for input_name, source in inputs.items():
        if source is not None and source.exists() and source.samefile(real):
            raise ValueError(f"{name} must differ from {input_name}, got {str(source)!r} for both.")
