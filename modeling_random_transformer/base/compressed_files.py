"""Reads and writes files that may be compressed, as their suffix says."""

import bz2
import gzip
import io
import lzma
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO
from zipfile import BadZipFile

from .errors import first_line, reraise_as_value_error
from .files import StrPath, name_path_in_errors, new_files
from .formats import ARCHIVES, COMPRESSIONS, text_suffix
from .streams import is_standard_stream, is_stream

GZIP_LEVEL = 6  # the default of the program gzip; Python's 9 takes twice as long for 1% less


@contextmanager
def open_binary(path: StrPath) -> Iterator[BinaryIO]:
    """Open a file for reading, or standard input.

    The file that the context manager returns can be iterated by line.

    Raises:
        ValueError: the file is an archive; or, while reading, a compressed file is damaged or incomplete; or pyarrow,
            which decompresses Zstandard, is not installed.
        OSError: the file cannot be read.
    """
    suffix = Path(path).suffix.lower()
    if suffix in ARCHIVES or text_suffix(path) in ARCHIVES:
        raise ValueError(
            f"{path} must be a text file, which may be compressed ({', '.join(COMPRESSIONS)}), "
            "not an archive or another compression: extract it first."
        )
    if is_standard_stream(path):
        yield sys.stdin.buffer
    elif suffix not in COMPRESSIONS:
        with open(path, "rb") as file:
            yield file
    else:
        with damaged_file_errors(path, COMPRESSIONS[suffix]), OPENERS[suffix](path) as file:
            yield file


@contextmanager
def damaged_file_errors(path: StrPath, format_name: str) -> Iterator[None]:
    """Convert the errors of a compressed file that is damaged, incomplete or encrypted."""
    try:
        if Path(path).is_file() and not Path(path).stat().st_size:  # the libraries read it as an empty text
            raise EOFError("the file has 0 bytes")
        yield
    except (EOFError, OSError, RuntimeError, lzma.LZMAError, zlib.error, BadZipFile) as error:
        if getattr(error, "errno", None) is not None:  # the operating system cannot read the file
            raise
        raise ValueError(f"{path} must be a complete {format_name} file, got an error: {first_line(error)}.") from error


@contextmanager
def create_binaries(paths: Sequence[StrPath], temporary_folder: Path | None = None) -> Iterator[list[IO[bytes]]]:
    """Write files, which replace earlier files when all are complete. Streams are written immediately.

    Args:
        paths: the files, which are compressed if their names say so.
        temporary_folder: see `new_files`.

    Raises:
        ValueError: pyarrow, which compresses with Zstandard, is not installed.
        OSError: a file cannot be written.
    """
    on_disk = [path for path in paths if not is_stream(path)]
    names = ", ".join("stdout" if is_standard_stream(path) else os.fspath(path) for path in paths)
    with new_files(on_disk, temporary_folder) as new, name_path_in_errors(names), ExitStack() as stack:
        files = []
        new_by_path = dict(zip(on_disk, new, strict=True))
        for path in paths:
            if is_standard_stream(path):
                file = sys.stdout.buffer
            elif path in new_by_path:
                file = new_by_path[path]
            else:  # an open file keeps what it contains
                file = stack.enter_context(open(path, "ab"))
            files.append(stack.enter_context(compressed_writer(path, file)))
        yield files


@contextmanager
def compressed_writer(path: StrPath, file: BinaryIO) -> Iterator[IO[bytes]]:
    """A file to write, compressed if the name says so."""
    writer: Any
    match Path(path).suffix.lower():
        case ".gz":  # no file name and no time, so that equal contents give equal files
            writer = gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0)
        case ".zst":  # a path, since pyarrow would close a file object
            writer = import_pyarrow(path).output_stream(file.name, compression="zstd")
        case ".bz2" | ".xz" as suffix:
            writer = OPENERS[suffix](file, "wb")
        case _:
            yield file
            file.flush()
            return
    with writer as compressed:
        yield compressed


def write_binary(path: Path, content: Iterable[bytes], temporary_folder: Path | None = None) -> None:
    """Write or replace a file with chunks of bytes, compressed by its suffix; see `create_binaries`."""
    with create_binaries([path], temporary_folder) as [file]:
        file.writelines(content)


def open_zstandard(path: StrPath) -> io.BufferedReader:
    """Open a Zstandard file of one or several frames for reading."""
    stream = import_pyarrow(path).input_stream(os.fspath(path), compression="zstd")
    return io.BufferedReader(stream, buffer_size=2**18)


OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".zst": open_zstandard,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}


def import_pyarrow(path: StrPath) -> Any:
    with reraise_as_value_error(f"{path} requires pyarrow: pip install 'random-transformer[train]'"):
        import pyarrow
    return pyarrow
