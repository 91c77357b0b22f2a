"""Reads and writes JSON and lines of text. Writes are atomic: a complete file gets its final name last."""

import errno
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError

StrPath = str | PathLike
PARTS_SUFFIX, STAGES_SUFFIX = ".parts", ".work"  # of folders with unfinished work, see `work_folder`
OS_ERROR = re.compile(r"\(os error (\d+)\)")  # in messages of libraries in Rust
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


@contextmanager
def name_path_in_errors(path: StrPath) -> Iterator[None]:
    """Add the path to write errors without one, such as that of a full disk.

    Raises:
        OSError: writing failed. Errors of safetensors are converted, and those of tokenizers with a number.
    """
    try:
        yield
    except OSError as error:
        if error.filename or not error.errno:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    except Exception as error:  # the class of all errors of tokenizers
        match = OS_ERROR.search(str(error))
        if match:
            number = int(match[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        if isinstance(error, SafetensorError):
            raise OSError(errno.EIO, str(error), str(path)) from error
        raise


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
