"""Converts the model in a zip or tar archive with the files that belong to it.

All members are checked before any is extracted. `tarfile`'s filters are not used: they check neither sizes nor zip
archives, and nothing but single files is extracted here, into one folder and without their paths and attributes.
"""

import bz2
import errno
import gzip
import lzma
import math
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

from ...base.atomic_files import check_free, name_path_in_errors
from ...base.errors import format_names, format_value
from .fairseq import FILES as FAIRSEQ_FILES
from .fairseq import convert_fairseq
from .marian_npz import convert_marian_npz
from .marian_npz_files import FILES as MARIAN_FILES
from .marian_npz_files import NOT_PACKED, OPTIMIZER
from .untrusted import check_expansion, is_hidden
from .weights import ConversionReport

CONVERTERS: dict[str, Callable[[Path, Path], ConversionReport]] = {".npz": convert_marian_npz, ".pt": convert_fairseq}
# By the suffix of a model: names of the files that its conversion reads, in the same folder.
COMPANIONS = {".npz": MARIAN_FILES, ".pt": FAIRSEQ_FILES}
MAX_COMPANION_BYTES = 2**26  # of one vocabulary
MAX_MEMBERS = 10_000
MAX_HEADER_BYTES = 2**24  # of all headers of a tar archive: those of `MAX_MEMBERS` files with long names
# The first bytes of compressed tar archives.
DECOMPRESSORS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError),
    *(RuntimeError, OverflowError, UnicodeError),  # from zipfile, for damaged headers and for encrypted files
)


class Member(NamedTuple):
    """A file or folder in an archive: its name, its size in bytes, and a function that opens a file."""

    name: str
    size: int
    is_file: bool
    is_folder: bool
    open: Callable[[], Any]


def convert_archive(archive: str | Path, output: str | Path, *, model: str | None = None) -> ConversionReport:
    """Convert the model in a zip or tar archive: a `.npz` file of Marian or a `.pt` file of fairseq.

    The archives of OPUS-MT and of fairseq's translation models have the expected layout: the model with its
    vocabularies, or with its dictionaries `dict.<language>.txt` and `bpecodes`, in one folder. Only these files are
    extracted, into a temporary folder next to `output`. Hidden files are ignored.

    Args:
        archive: a `.zip`, `.tar`, `.tar.gz`, `.tar.bz2` or `.tar.xz` file; the format is detected by its content.
        output: a new or empty folder.
        model: name of the model's file in the archive. When `None`, the first in alphabetical order; an archive may
            contain several, which are an ensemble.

    Raises:
        ValueError: the archive is damaged or unsafe (see `open_archive`), or does not contain a model; or the model
            cannot be converted (see `convert_marian_npz` and `convert_fairseq`). In this case, nothing is written.
    """
    archive, output = Path(archive), check_free(output)
    with TemporaryDirectory(dir=output.absolute().parent, prefix=f".{output.name}.") as scratch:
        with open_archive(archive) as members:
            chosen, others = choose_model(archive, list(members), model)
            pattern = COMPANIONS[chosen.suffix]
            # In the order of the archive, as going back in a compressed tar archive decompresses it again.
            needed = [p for p in members if p == chosen or (p.parent == chosen.parent and pattern.fullmatch(p.name))]
            check_sizes(archive, Path(scratch), {p: members[p].size for p in needed}, chosen)
            for path in needed:
                extracted = Path(scratch) / path.name
                with name_path_in_errors(extracted), members[path].open() as source, extracted.open("xb") as target:
                    shutil.copyfileobj(source, target, 2**20)
        try:
            report = CONVERTERS[chosen.suffix](Path(scratch) / chosen.name, output)
        except ValueError as error:
            raise ValueError(str(error).replace(scratch, str(archive))) from error
    report.origin = report.origin.replace(scratch, str(archive))
    report.notes.insert(0, f"Read from the archive: {format_names(map(str, needed), len(needed))}.")
    if others:
        names = format_names(map(str, others))
        report.notes.insert(1, f"Other models of the archive, which were not converted: {names}.")
    return report


def choose_model(
    archive: Path, paths: list[PurePosixPath], name: str | None
) -> tuple[PurePosixPath, list[PurePosixPath]]:
    """The model with a name, or the first one; and the other models.

    Raises:
        ValueError: there is no such model.
    """
    models = sorted(path for path in paths if path.suffix in CONVERTERS and not path.name.endswith(OPTIMIZER))
    if not models:
        found = format_names(map(str, paths)) or "no files"
        allowed = f"a .pt file of fairseq or a .npz file of Marian{NOT_PACKED}"
        raise ValueError(f"{archive} must contain {allowed}, got {found}.")
    chosen = [path for path in models if name in (None, path.name, str(path))]
    if not chosen or (name is not None and len(chosen) > 1):
        raise ValueError(f"model must be one of {format_names(map(str, models))}, got {name!r}.")
    return chosen[0], [path for path in models if path != chosen[0]]


def check_sizes(archive: Path, folder: Path, sizes: dict[PurePosixPath, int], model: PurePosixPath) -> None:
    """Raise a `ValueError` if a file is too large for a vocabulary, or if the disk has no space for all files twice."""
    for path, size in sizes.items():
        if path != model and size > MAX_COMPANION_BYTES:
            allowed = f"vocabularies of at most {MAX_COMPANION_BYTES} bytes"
            raise ValueError(f"{archive} must have {allowed}, got {format_value(str(path))} of {size} bytes.")
    needed, free = 2 * sum(sizes.values()), shutil.disk_usage(folder).free
    if free < needed:
        raise ValueError(f"output must be on a disk with {needed} free bytes, got {free} in {folder.parent}.")


@contextmanager
def open_archive(path: Path) -> Iterator[dict[PurePosixPath, Member]]:
    """The files in an archive that are not hidden, in its order. Inside the context they can be extracted.

    Raises:
        ValueError: this is not a complete zip or tar archive; or a member is a link, is encrypted or has a path outside
            of the archive, or the members are too many or too large.
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


def check_members(archive: Path, members: Iterable[Member]) -> dict[PurePosixPath, Member]:
    """The files that are not hidden, by their paths. Each member is checked before the next one is read.

    Raises:
        ValueError: a path is unsafe or repeated, a member is neither a file nor a folder, or a limit is exceeded.
    """
    size, files = 0, {}
    for number, member in enumerate(members, start=1):
        name, path = format_value(member.name), PurePosixPath(member.name)
        if number > MAX_MEMBERS:
            raise ValueError(f"{archive} must have at most {MAX_MEMBERS} members, got more.")
        drive = PureWindowsPath(member.name).drive
        if path.is_absolute() or drive or ".." in path.parts or {"\\", "\0"} & set(member.name):
            raise ValueError(f"{archive} must contain relative paths without '..', got {name}.")
        if not (member.is_file or member.is_folder):
            raise ValueError(f"{archive} must contain only files and folders, got {name}, a link or a device.")
        if member.is_file:
            size += member.size
            check_expansion(archive, size)
            if path in files:
                raise ValueError(f"{archive} must contain each file once, got {format_value(str(path))} again.")
            files[path] = member
    return {path: member for path, member in files.items() if not is_hidden(path)}


@contextmanager
def zip_members(path: Path) -> Iterator[Iterator[Member]]:
    with zipfile.ZipFile(path) as archive:

        def member(info: zipfile.ZipInfo) -> Member:
            # The type of a file is 0 if the archive has no Unix attributes.
            is_file = not info.is_dir() and stat.S_IFMT(info.external_attr >> 16) in (0, stat.S_IFREG)
            return Member(info.filename, info.file_size, is_file, info.is_dir(), partial(archive.open, info))

        yield map(member, archive.infolist())


@contextmanager
def tar_members(path: Path, start: bytes) -> Iterator[Iterator[Member]]:
    decompressors = [function for magic, function in DECOMPRESSORS.items() if start.startswith(magic)]
    with (
        decompressors[0](path) if decompressors else path.open("rb") as file,
        tarfile.open(fileobj=(headers := LimitedReads(file, path)), mode="r:") as archive,  # type: ignore[call-overload]
    ):

        def members() -> Iterator[Member]:
            for info in archive:
                yield Member(info.name, info.size, info.isreg(), info.isdir(), partial(archive.extractfile, info))
            headers.limit = math.inf  # from here on, the content of files is read

        yield members()


class LimitedReads:
    """A file for tarfile that reads at most `MAX_HEADER_BYTES`, until `limit` is set to another number.

    An extended header has any size, and there may be any number of them before each file.
    """

    def __init__(self, file: IO[bytes], path: Path):
        self.file, self.path, self.limit = file, path, float(MAX_HEADER_BYTES)
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int) -> bytes:
        self.limit -= size
        if self.limit < 0:
            raise ValueError(f"{self.path} must have headers of at most {MAX_HEADER_BYTES} bytes, got more.")
        return self.file.read(size)
