"""Writes a folder of results, such as a converted or exported model, without replacing files of another origin."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..base.files import StrPath, name_path_in_errors, write_atomically

WRITTEN_FILES = ".written_files.txt"  # the list of the files that were written to a folder


def check_free(output: StrPath, overwrite: bool = False) -> Path:
    """Check that a folder can be created without overwriting anything.

    Args:
        output: the folder.
        overwrite: allow an existing folder with files (see `new_folder`).

    Raises:
        ValueError: `output` is not a new or an empty folder in an existing folder, or cannot be written.
    """
    path = Path(output)
    parent = path.absolute().parent
    exists = path.exists()
    if not parent.is_dir():
        raise ValueError(f"output must be in a folder that exists, got {str(output)!r}.")
    if path.is_symlink() or (exists and not path.is_dir()):
        raise ValueError(f"output must be a new or an empty folder, got {str(output)!r}.")
    if exists and any(path.iterdir()) and not overwrite:
        raise ValueError(f"output must be a new or an empty folder without overwrite, got {str(output)!r}.")
    if not os.access(path if exists else parent, os.W_OK):
        raise ValueError(f"output must be a folder that can be written, got {str(output)!r}.")
    return path


@contextmanager
def new_folder(output: StrPath, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder, which becomes `output` if the block succeeds: by one rename if `output` is new.

    An existing folder may be the current folder or a mount point, which cannot be replaced. Therefore the files of the
    temporary folder are moved to it one by one. The folder records them in `WRITTEN_FILES`. With `overwrite`, they
    replace the files that an earlier call recorded. All other files in the folder remain.

    Args:
        output: the folder.
        overwrite: replace the files that were written before.

    Raises:
        ValueError: see `check_free`; or a file of another origin would be replaced.
        OSError: a file cannot be written.
    """
    path = check_free(output, overwrite)
    exists = path.exists()
    scratch_parent = path if exists else path.absolute().parent
    with TemporaryDirectory(dir=scratch_parent, prefix=f".{path.name}.") as scratch:
        folder = Path(scratch) / "folder"  # has default permissions, unlike the scratch folder (0700)
        folder.mkdir()
        with name_path_in_errors(path):
            yield folder
            files = [file for file in folder.rglob("*") if file.is_file()]
            names = sorted(str(file.relative_to(folder)) for file in files)
            record_files(folder, names)
        if not exists:
            os.replace(folder, path)
            return
        if not overwrite and len(os.listdir(path)) > 1:
            raise ValueError(f"output must remain empty until it is complete, got files in {str(output)!r}.")
        replace_files(path, folder, names)


def replace_files(path: Path, folder: Path, names: Sequence[str]) -> None:
    """Move the files of a folder to another one, where they replace those that were written before."""
    written = read_written_files(path)
    for name in names:
        if (path / name).exists() and name not in written:
            raise ValueError(f"output must not contain a file {name} of another origin, got {str(path)!r}.")
    # After an interruption, the files are still recorded as written.
    record_files(path, written.union(names))
    for name in written:
        (path / name).unlink(missing_ok=True)
    for name in (*names, WRITTEN_FILES):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder / name, path / name)


def record_files(folder: Path, names: Iterable[str]) -> None:
    text = "\n".join(sorted(names))
    write_atomically(folder / WRITTEN_FILES, [text.encode()])  # on a full disk, an earlier record remains


def read_written_files(folder: Path) -> set[str]:
    """The names of the files that `new_folder` has written to a folder."""
    record = folder / WRITTEN_FILES
    if not record.is_file():
        return set()
    root = folder.resolve()
    names = record.read_text(encoding="utf-8").splitlines()
    return {name for name in names if (folder / name).resolve().is_relative_to(root)}
