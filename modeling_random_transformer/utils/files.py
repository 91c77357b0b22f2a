"""Folders that are there when they are complete, and not before."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors import SafetensorError


def check_free(output: str | PathLike) -> Path:
    """Refuse to write where something is, or where there is no folder to write in.

    Raises:
        ValueError: `output` is not a new or an empty folder in a folder that exists.
    """
    path = Path(output)
    if not path.absolute().parent.is_dir():
        raise ValueError(f"output must lie in a folder that exists, got {str(output)!r}.")
    if path.is_symlink() or (path.exists() and not (path.is_dir() and not any(path.iterdir()))):
        raise ValueError(f"output must be a new or an empty folder, got {str(output)!r}.")
    return path


@contextmanager
def naming_path(path: str | PathLike) -> Iterator[None]:
    """Add the path to errors of writing that have none, such as that of a full disk.

    Raises:
        OSError: writing failed; also where safetensors raises an error of its own.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except SafetensorError as error:
        number = errno.ENOSPC if "os error 28" in str(error) else errno.EIO
        raise OSError(number, os.strerror(number) if number == errno.ENOSPC else str(error), str(path)) from error


@contextmanager
def new_folder(output: str | PathLike) -> Iterator[Path]:
    """A temporary folder to fill, beside `output`; it becomes `output` if nothing goes wrong.

    Raises:
        ValueError: as of `check_free`.
        OSError: a file cannot be written.
    """
    path = check_free(output)
    with TemporaryDirectory(dir=path.absolute().parent, prefix=f".{path.name}.") as scratch:
        folder = Path(scratch) / "folder"  # a folder like others: the one around it is for this user alone
        folder.mkdir()
        with naming_path(path):
            yield folder
        os.replace(folder, path)
