"""Folders that are there when they are complete, and not before."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory


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
def new_folder(output: str | PathLike) -> Iterator[Path]:
    """A temporary folder to fill, beside `output`; it becomes `output` if nothing goes wrong.

    Raises:
        ValueError: as of `check_free`.
    """
    path = check_free(output)
    with TemporaryDirectory(dir=path.absolute().parent, prefix=f".{path.name}.") as scratch:
        folder = Path(scratch) / "folder"  # a folder like others: the one around it is for this user alone
        folder.mkdir()
        yield folder
        os.replace(folder, path)
