"""Reads and writes JSON and lines of text. Writes are atomic: a complete file or folder gets its final name last."""

import errno
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO

from safetensors import SafetensorError

StrPath = str | PathLike
PARTS_SUFFIX, STAGES_SUFFIX = ".parts", ".work"  # of folders with unfinished work, see `work_folder`
WRITTEN_FILES = ".written_files.txt"  # the list of the files that were written to a folder
NOT_IN_LINES = re.compile(r"\r\n|[\r\n\0]")


def read_json(path: StrPath) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises:
        ValueError: the file is missing or damaged, or does not contain an object.
    """
    try:
        content = json.loads(Path(path).read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ValueError(f"{path} must be a JSON file, but it is missing.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON file, but it is damaged.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must contain a JSON object, got {type(content).__name__}.")
    return content


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write or replace a JSON file with an object, atomically."""
    text = json.dumps(content, indent=2, ensure_ascii=False)
    write_atomically(path, [text.encode(errors="backslashreplace")])  # file names may be invalid UTF-8


def one_line(text: str) -> str:
    """Replace each line break (`\\n`, `\\r` or `\\r\\n`) and each NUL character by a space."""
    return NOT_IN_LINES.sub(" ", text)


def encode_lines(texts: Iterable[str]) -> Iterator[bytes]:
    """Encode each text as exactly one line of UTF-8."""
    for text in texts:
        yield f"{one_line(text)}\n".encode()


def check_free(output: StrPath, overwrite: bool = False) -> Path:
    """Check that a folder can be created without overwriting anything.

    Args:
        output: the folder.
        overwrite: allow an existing folder with files (see `new_folder`).

    Raises:
        ValueError: `output` is not a new or an empty folder in an existing folder, or cannot be written.
    """
    path = Path(output)
    if not path.absolute().parent.is_dir():
        raise ValueError(f"output must be in a folder that exists, got {str(output)!r}.")
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ValueError(f"output must be a new or an empty folder, got {str(output)!r}.")
    if path.exists() and any(path.iterdir()) and not overwrite:
        raise ValueError(f"output must be a new or an empty folder without overwrite, got {str(output)!r}.")
    if not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise ValueError(f"output must be a folder that can be written, got {str(output)!r}.")
    return path


@contextmanager
def name_path_in_errors(path: StrPath) -> Iterator[None]:
    """Add the path to write errors without one, such as that of a full disk.

    Raises:
        OSError: writing failed. Errors of safetensors are converted to an `OSError`.
    """
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except SafetensorError as error:
        if "os error 28" in str(error):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise OSError(errno.EIO, str(error), str(path)) from error


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
    with TemporaryDirectory(dir=path if exists else path.absolute().parent, prefix=f".{path.name}.") as scratch:
        folder = Path(scratch) / "folder"  # has default permissions, unlike the scratch folder (0700)
        folder.mkdir()
        with name_path_in_errors(path):
            yield folder
            files = [file for file in folder.rglob("*") if file.is_file()]
            names = sorted(str(file.relative_to(folder)) for file in files)
            _record_files(folder, names)
        if not exists:
            os.replace(folder, path)
            return
        if not overwrite and len(os.listdir(path)) > 1:
            raise ValueError(f"output must remain empty until it is complete, got files in {str(output)!r}.")
        _replace_files(path, folder, names)


def _replace_files(path: Path, folder: Path, names: Sequence[str]) -> None:
    """Move the files of a folder to another one, where they replace those that were written before."""
    written = read_written_files(path)
    for name in names:
        if (path / name).exists() and name not in written:
            raise ValueError(f"output must not contain a file {name} of another origin, got {str(path)!r}.")
    # After an interruption, the files are still recorded as written.
    _record_files(path, written.union(names))
    for name in written:
        (path / name).unlink(missing_ok=True)
    for name in (*names, WRITTEN_FILES):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        os.replace(folder / name, path / name)


def _record_files(folder: Path, names: Iterable[str]) -> None:
    (folder / WRITTEN_FILES).write_text("\n".join(sorted(names)), encoding="utf-8")


def read_written_files(folder: Path) -> set[str]:
    """The names of the files that `new_folder` has written to a folder."""
    record = folder / WRITTEN_FILES
    names = record.read_text(encoding="utf-8").splitlines() if record.is_file() else []
    return {name for name in names if (folder / name).resolve().is_relative_to(folder.resolve())}


@contextmanager
def new_files(paths: Sequence[StrPath], temporary_folder: Path | None = None) -> Iterator[Sequence[BinaryIO]]:
    """Yield files to write, which get their names, or replace the old files, if the block succeeds.

    After an interruption, each path contains either the old file or the complete new file. If a write fails, all old
    files remain.

    Args:
        paths: the files. For a symbolic link, its target is replaced.
        temporary_folder: folder of the incomplete files, on the same file system; by default, the folder of each file.

    Raises:
        OSError: a file cannot be written.
    """
    names = [Path(os.path.realpath(path)) for path in paths]
    temporaries = []
    for name in names:
        folder = temporary_folder or name.parent
        temporaries.append(folder / f"{name.name}.{secrets.token_hex(4)}.tmp")
    try:
        with name_path_in_errors(", ".join(map(str, names))), ExitStack() as stack:
            files = [stack.enter_context(open(temporary, "xb")) for temporary in temporaries]
            yield files
            for file in files:
                file.flush()
                os.fsync(file.fileno())
        for temporary, name in zip(temporaries, names, strict=True):
            os.replace(temporary, name)
    finally:
        for temporary in temporaries:
            temporary.unlink(missing_ok=True)


def work_folder(output: StrPath, suffix: str) -> Path:
    """The folder of the unfinished work for an output file.

    Args:
        output: the file. For a symbolic link, the folder is next to its target, since renaming requires the same file
            system.
        suffix: `PARTS_SUFFIX` for the chunks of one output, `STAGES_SUFFIX` for work of several stages.
    """
    return Path(f"{os.path.realpath(output)}{suffix}")


def files_in(folder: Path, patterns: Iterable[str]) -> Iterator[Path]:
    """The files whose names match patterns of `glob`, which are looked up when the iterator is read."""
    for pattern in patterns:
        yield from sorted(folder.glob(pattern))


def folder_size(folder: StrPath, pattern: str = "**/*") -> float:
    """The total size of the files in a folder whose paths match a glob pattern, in megabytes (10⁶ bytes)."""
    return sum(file.stat().st_size for file in Path(folder).glob(pattern) if file.is_file()) / 1e6


def remove_written(folder: Path, *patterns: str) -> None:
    """Remove the files whose names match regular expressions, in this order, and their temporary files."""
    for pattern in patterns:
        for path in [*folder.iterdir()]:
            if re.fullmatch(rf"({pattern})(\.[0-9a-f]{{8}}\.tmp)?", path.name):
                path.unlink()


def remove_if_empty(folder: Path) -> None:
    """Remove a folder if it is empty. Files of other programs keep it."""
    with suppress(OSError):
        folder.rmdir()


def write_atomically(path: Path, content: Iterable[bytes], temporary_folder: Path | None = None) -> None:
    """Write or replace a file with chunks of bytes; see `new_files`."""
    with new_files([path], temporary_folder) as [file]:
        file.writelines(content)
