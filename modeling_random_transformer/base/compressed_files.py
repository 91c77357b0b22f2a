"""Reads and writes files that may be compressed, as their suffix says. `-` is a standard stream."""

import bz2
import gzip
import io
import lzma
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO
from zipfile import BadZipFile

from .errors import first_line, reraise_as_value_error
from .files import StrPath, name_path_in_errors, new_files

STANDARD_STREAM = "-"
COMPRESSIONS = {".gz": "gzip", ".zst": "Zstandard", ".bz2": "bzip2", ".xz": "xz"}
ARCHIVES = (".zip", ".7z", ".rar", ".tar", ".tgz", ".tbz2", ".txz", ".lzma", ".lz4", ".br", ".z")
# Formats of parallel text: with columns, or with a text for each language.
TEXT_FORMATS = {
    ".tsv": "tsv",
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".tmx": "tmx",
    ".zip": "zip",
}
# Formats of documents, which contain texts and markup.
DOCUMENT_FORMATS = {  # formats that `translate` supports
    ".html": "html",
    ".htm": "html",
    ".xhtml": "html",
    ".srt": "srt",
    ".po": "po",
    ".pot": "po",
    ".xliff": "xliff",
    ".xlf": "xliff",
}
DOCUMENTS = {
    *DOCUMENT_FORMATS,
    ".sdlxliff",
    ".mqxliff",
    ".tbx",
    ".resx",
    ".xml",
    ".sgm",
    ".sgml",
    ".vtt",
    ".docx",
    ".doc",
    ".odt",
    ".rtf",
    ".pdf",
    ".epub",
    ".pptx",
    ".xlsx",
    ".ods",
    ".md",
    ".rst",
    ".tex",
}
OPEN_FILE = re.compile(r"/dev/(stdout|stderr|fd/\d+)|/proc/(self|\d+)/fd/\d+")
GZIP_LEVEL = 6  # the default of the program gzip; Python's 9 takes twice as long for 1% less


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
    return is_standard_stream(path) or (Path(path).exists() and not Path(path).is_dir())


def check_readable(name: str, path: StrPath, *, repeatedly: bool = False) -> None:
    """Check the path of an argument.

    Raises:
        ValueError: the path is neither `-` nor a file or a pipe; or, to read it `repeatedly`, not a file.
    """
    is_allowed = Path(path).is_file() if repeatedly else is_readable(path)
    if not is_allowed:
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


def file_format(path: StrPath) -> str:
    """A value of `TEXT_FORMATS`, or `"text"`, by the suffix before that of a compression, in any case."""
    return TEXT_FORMATS.get(text_suffix(path), "text")


def text_suffix(path: StrPath) -> str:
    """The suffix before that of a compression, in lower case."""
    path = Path(path)
    if path.suffix.lower() in COMPRESSIONS:
        path = path.with_suffix("")
    return path.suffix.lower()


def check_plain_text(name: str, path: StrPath | None, document_format: str | None = None) -> None:
    """Check that the lines of a file are texts, by its name.

    Args:
        name: name of the argument, for errors.
        path: the file, if there is one.
        document_format: the value of `--format`, for a file that may be a document instead.

    Raises:
        ValueError: it is a file with columns or a document.
    """
    if path is None:
        return
    suffix = text_suffix(path)
    if suffix in TEXT_FORMATS:
        raise ValueError(
            f"{name} must be a file with one text per line, not {', '.join(TEXT_FORMATS)}, got {str(path)!r}."
        )
    is_supported = document_format is not None and DOCUMENT_FORMATS.get(suffix) == document_format
    if suffix in DOCUMENTS and not is_supported:
        formats = ", ".join(dict.fromkeys(DOCUMENT_FORMATS.values()))
        or_document = "" if document_format is None else f", or a document with --format {formats}"
        raise ValueError(
            f"{name} must be a file with one text per line{or_document}, got {str(path)!r}: "
            "extract the texts of other documents."
        )


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
            files.append(stack.enter_context(_compressed(path, file)))
        yield files


@contextmanager
def _compressed(path: StrPath, file: BinaryIO) -> Iterator[IO[bytes]]:
    """A file to write, compressed if the name says so."""
    writer: Any
    match Path(path).suffix.lower():
        case ".gz":  # no file name and no time, so that equal contents give equal files
            writer = gzip.GzipFile("", "wb", GZIP_LEVEL, file, mtime=0)
        case ".zst":  # a path, since pyarrow would close a file object
            writer = _pyarrow(path).output_stream(file.name, compression="zstd")
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


def _open_zstandard(path: StrPath) -> io.BufferedReader:
    """Open a Zstandard file of one or several frames for reading."""
    stream = _pyarrow(path).input_stream(os.fspath(path), compression="zstd")
    return io.BufferedReader(stream, buffer_size=2**18)


OPENERS: dict[str, Callable[..., Any]] = {
    ".gz": gzip.open,
    ".zst": _open_zstandard,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}


def _pyarrow(path: StrPath) -> Any:
    with reraise_as_value_error(f"{path} requires pyarrow: pip install 'random-transformer[train]'"):
        import pyarrow
    return pyarrow
