"""Converts the model in a zip or tar archive with the files that belong to it.

All members are checked before any member is extracted. `tarfile`'s filters are not used, since they check neither sizes
nor zip archives. Only single files are extracted, into one folder, without their paths and attributes.
"""

import bz2
import errno
import gzip
import lzma
import math
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import IO, Any, NamedTuple

from ...base.errors import format_names, format_value
from ...base.files import StrPath, name_path_in_errors
from ..new_folder import check_free
from .fairseq import FAIRSEQ_FILES, convert_fairseq
from .files import is_hidden
from .marian_npz import convert_marian_npz
from .marian_npz_files import MARIAN_FILES, MARIAN_MODEL, NOT_PACKED
from .untrusted import check_expansion
from .weights import ConversionReport

ARCHIVED_MODEL = re.compile(rf"{MARIAN_MODEL.pattern}|.*\.pt")
# Suffix of a model → its conversion, and the names of the other files that the conversion reads.
CONVERTERS: dict[str, Callable[..., ConversionReport]] = {".npz": convert_marian_npz, ".pt": convert_fairseq}
COMPANIONS = {".npz": MARIAN_FILES, ".pt": FAIRSEQ_FILES}
MAX_COMPANION_BYTES = 2**26  # limit for one vocabulary file
MAX_MEMBERS = 10_000
MAX_HEADER_BYTES = 2**24  # limit for all headers of a tar archive, enough for `MAX_MEMBERS` files with long names
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
# The first bytes of compressed tar archives.
DECOMPRESSORS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
DAMAGED = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    # zipfile raises these for damaged headers and for encrypted files.
    RuntimeError,
    OverflowError,
    UnicodeError,
)


class Member(NamedTuple):
    """A file or folder in an archive: its name, its size in bytes, and a function that opens a file."""

    name: str
    size: int
    is_file: bool
    is_folder: bool
    open: Callable[[], Any]


Files = dict[PurePosixPath, Member]


def convert_archive(
    archive: StrPath, output: StrPath, *, model: str | None = None, overwrite: bool = False
) -> ConversionReport:
    """Convert the model in a zip or tar archive: a `.npz` file of Marian or a `.pt` file of fairseq.

    The archives of OPUS-MT and of fairseq's translation models have the expected layout: the model with its
    vocabularies, or with its dictionaries `dict.<language>.txt` and `bpecodes`, in one folder. Only these files are
    extracted, into a temporary folder next to `output`. Hidden files are ignored.

    Args:
        archive: a `.zip`, `.tar`, `.tar.gz`, `.tar.bz2` or `.tar.xz` file; the format is detected by its content.
        output: a new or empty folder.
        model: name of the model's file in the archive, which may contain an ensemble of several models. `None` selects
            the first in alphabetical order.
        overwrite: replace the files that a conversion wrote to `output`. Other files in it remain.

    Raises:
        ValueError: the archive is damaged or unsafe (see `open_archive`), or does not contain a model; or the model
            cannot be converted (see `convert_marian_npz` and `convert_fairseq`). In this case, nothing is written.
    """
    archive = Path(archive)
    output = check_free(output, overwrite)
    with TemporaryDirectory(dir=output.absolute().parent, prefix=f".{output.name}.") as scratch:
        with open_archive(archive) as files:
            chosen, *other_models = find_models(archive, files, model)
            needed = [chosen, *find_companions(archive, files, chosen)]
            # Files are read in the order of the archive: going back in a compressed tar file decompresses it again.
            needed.sort(key=list(files).index)
            extract_members([files[path] for path in needed], Path(scratch))
        try:
            convert = CONVERTERS[chosen.suffix]
            report = convert(Path(scratch, chosen.name), output, overwrite=overwrite)
        except ValueError as error:
            raise ValueError(str(error).replace(scratch, str(archive))) from error
    report.origin = report.origin.replace(scratch, str(archive))
    report.notes.insert(0, f"Read from the archive: {format_names(map(str, needed), len(needed))}.")
    if other_models:
        names = format_names(map(str, other_models))
        report.notes.insert(1, f"Other models of the archive, which were not converted: {names}.")
    return report


def find_models(archive: Path, files: Files, name: str | None) -> list[PurePosixPath]:
    """The models in an archive, with the one of this name first.

    Raises:
        ValueError: there is no such model.
    """
    models = sorted(path for path in files if ARCHIVED_MODEL.fullmatch(path.name))
    if not models:
        raise ValueError(
            f"{archive} must contain a .pt file of fairseq or a .npz file of Marian{NOT_PACKED}, "
            f"got {format_names(map(str, files)) or 'no files'}."
        )
    if name is not None:
        named = [path for path in models if name in (path.name, str(path))]
        if len(named) != 1:
            raise ValueError(f"model must be one of {format_names(map(str, models))}, got {name!r}.")
        models.remove(named[0])
        models = named + models
    return models


def find_companions(archive: Path, files: Files, model: PurePosixPath) -> list[PurePosixPath]:
    """The files that the conversion of a model reads.

    Raises:
        ValueError: a file is too large for a vocabulary.
    """
    pattern = COMPANIONS[model.suffix]
    companions = [path for path in files if path.parent == model.parent and pattern.fullmatch(path.name)]
    for path in companions:
        if files[path].size > MAX_COMPANION_BYTES:
            raise ValueError(
                f"{archive} must have vocabularies of at most {MAX_COMPANION_BYTES} bytes, "
                f"got {format_value(str(path))} of {files[path].size} bytes."
            )
    return companions


def extract_members(members: list[Member], folder: Path) -> None:
    """Extract files into a folder, without their paths.

    Raises:
        ValueError: the disk has no space for the files and for the converted model.
    """
    needed = 2 * sum(member.size for member in members)
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(f"output must be on a disk with {needed} free bytes, got {free} in {folder.parent}.")
    for member in members:
        name = PurePosixPath(member.name).name
        path = folder / name
        with name_path_in_errors(path), member.open() as source, path.open("xb") as target:
            shutil.copyfileobj(source, target, 2**20)


@contextmanager
def open_archive(path: Path) -> Iterator[Files]:
    """The files in an archive that are not hidden, in its order. Inside the context they can be extracted.

    Raises:
        ValueError: the file is not a complete zip or tar archive; or a member is a link, is encrypted or has a path
            outside of the archive, or the members are too many or too large.
    """
    try:
        with path.open("rb") as file:
            start = file.read(8)
        with zip_members(path) if start.startswith(ZIP) else tar_members(path, start) as members:
            yield check_members(path, members)
    except (*DAMAGED, OSError) as error:
        # gzip and bz2 raise an OSError without a number for damaged data, and zipfile seeks to a wrong position.
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):
            raise
        raise ValueError(f"{path} must be a complete zip or tar archive, but it cannot be read.") from error


def check_members(archive: Path, members: Iterable[Member]) -> Files:
    """The files that are not hidden, by their paths. Each member is checked before the next one is read.

    Raises:
        ValueError: a path is unsafe or repeated, a member is neither a file nor a folder, or a limit is exceeded.
    """
    size = 0
    files: Files = {}
    for number, member in enumerate(members, start=1):
        name = format_value(member.name)
        path = PurePosixPath(member.name)
        if number > MAX_MEMBERS:
            raise ValueError(f"{archive} must have at most {MAX_MEMBERS} members, got more.")
        has_drive = PureWindowsPath(member.name).drive != ""
        if path.is_absolute() or has_drive or ".." in path.parts or {"\\", "\0"} & set(member.name):
            raise ValueError(f"{archive} must contain relative paths without '..', got {name}.")
        if member.is_folder:
            continue
        if not member.is_file:
            raise ValueError(f"{archive} must contain only files and folders, got {name}, a link or a device.")
        size += member.size
        check_expansion(archive, size)
        if path in files:
            raise ValueError(f"{archive} must contain each file once, got {format_value(str(path))} again.")
        files[path] = member
    return {path: member for path, member in files.items() if not is_hidden(path)}


@contextmanager
def zip_members(path: Path) -> Iterator[Iterator[Member]]:
    """The members of a zip archive."""
    with zipfile.ZipFile(path) as archive:
        yield (
            Member(
                info.filename,
                info.file_size,
                # The type of a file is 0 if the archive has no Unix attributes.
                not info.is_dir() and stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG),
                info.is_dir(),
                partial(archive.open, info),
            )
            for info in archive.infolist()
        )


@contextmanager
def tar_members(path: Path, start: bytes) -> Iterator[Iterator[Member]]:
    """The members of a tar archive with these first bytes."""
    open_file: Callable[[Path], Any] = partial(open, mode="rb")
    for magic, decompress in DECOMPRESSORS.items():
        if start.startswith(magic):
            open_file = decompress
    with open_file(path) as file:
        headers = LimitedReads(file, path)
        with tarfile.open(fileobj=headers, mode="r:") as archive:  # type: ignore[call-overload]

            def members() -> Iterator[Member]:
                for info in archive:
                    yield Member(info.name, info.size, info.isreg(), info.isdir(), partial(archive.extractfile, info))
                headers.limit = math.inf  # the headers are complete; from here on, the content of files is read

            yield members()


class LimitedReads:
    """A file for tarfile that reads at most `MAX_HEADER_BYTES`, until `limit` is set to another number.

    An extended header has any size, and there may be any number of them before each file.
    """

    def __init__(self, file: IO[bytes], path: Path):
        self.file = file
        self.path = path
        self.limit = float(MAX_HEADER_BYTES)
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        self.limit -= size
        if self.limit < 0:
            raise ValueError(f"{self.path} must have headers of at most {MAX_HEADER_BYTES} bytes, got more.")
        return self.file.read(size)
