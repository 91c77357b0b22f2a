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
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from tempfile import TemporaryDirectory
from typing import IO, Any, TypeVar

from ..utils.atomic_files import check_free, name_path_in_errors
from ..utils.errors import format_names, format_value
from .fairseq import FILES as FAIRSEQ_FILES
from .fairseq import convert_fairseq_folder
from .marian_npz import convert_marian_npz
from .marian_npz_files import FILES as MARIAN_FILES
from .report import ConversionReport
from .untrusted import check_expansion, is_hidden

CONVERTERS: dict[str, Callable[[Path, Path], ConversionReport]] = {
    ".npz": convert_marian_npz,
    ".pt": convert_fairseq_folder,
}
# By the suffix of a model: names of the files that its conversion reads, in the same folder.
COMPANIONS = {".npz": MARIAN_FILES, ".pt": FAIRSEQ_FILES}
OPTIMIZER = ".optimizer.npz"  # the end of the name of Marian's training state
MAX_COMPANION_BYTES = 2**26  # of one vocabulary
MAX_MEMBERS = 10_000
MAX_BYTES = 2**35  # of all members, uncompressed: several times an ensemble of four big models
MAX_HEADER_BYTES = 2**24  # of all headers of a tar archive: those of `MAX_MEMBERS` files with long names
CHUNK = 2**20
# The first bytes of compressed tar archives.
DECOMPRESSORS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
ZIP = (b"PK\x03\x04", b"PK\x05\x06")
DAMAGED = (
    *(zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, EOFError),
    *(NotImplementedError, RuntimeError, OverflowError, UnicodeError),  # from zipfile, for damaged headers
)

Info = TypeVar("Info", zipfile.ZipInfo, tarfile.TarInfo)


@dataclass(frozen=True)
class Member:
    """A file in an archive: its path, its size in bytes, and a function that opens it."""

    path: PurePosixPath
    size: int
    open: Callable[[], IO[bytes]]


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
        with open_archive(archive) as contained:
            members = [member for member in contained if not is_hidden(member.path)]
            chosen, others = choose_model(archive, members, model)
            needed = [chosen, *find_companions(archive, members, chosen)]
            check_space(Path(scratch), sum(member.size for member in needed))
            # In the order of the archive, as going back in a compressed tar archive decompresses it again.
            for member in sorted(needed, key=members.index):
                extract(member, Path(scratch))
        try:
            report = CONVERTERS[chosen.path.suffix](Path(scratch) / chosen.path.name, output)
        except ValueError as error:
            raise ValueError(str(error).replace(scratch, str(archive))) from error
    report.notes.insert(
        0, f"Read from the archive: {format_names((str(member.path) for member in needed), len(needed))}."
    )
    if others:
        names = format_names(str(member.path) for member in others)
        report.notes.insert(1, f"Other models of the archive, which were not converted: {names}.")
    return report


def choose_model(archive: Path, members: list[Member], name: str | None) -> tuple[Member, list[Member]]:
    """The model with a name, or the first one; and the other models.

    Raises:
        ValueError: there is no such model.
    """
    models = [m for m in members if m.path.suffix in CONVERTERS and not m.path.name.endswith(OPTIMIZER)]
    models.sort(key=lambda m: str(m.path))
    if not models:
        binary = [str(m.path) for m in members if m.path.suffix == ".bin"]
        found = format_names(binary or (str(m.path) for m in members)) or "no files"
        packed = ": binary models of Marian, which are packed or have integers, are not supported" if binary else ""
        raise ValueError(f"{archive} must contain a Marian model (.npz) or a fairseq model (.pt), got {found}{packed}.")
    if name is None:
        return models[0], models[1:]
    chosen = [m for m in models if name in (m.path.name, str(m.path))]
    if len(chosen) != 1:
        raise ValueError(f"model must be one of {format_names(str(m.path) for m in models)}, got {name!r}.")
    return chosen[0], [m for m in models if m != chosen[0]]


def find_companions(archive: Path, members: list[Member], model: Member) -> list[Member]:
    """The files that belong to a model.

    Raises:
        ValueError: one is too large to be a vocabulary.
    """
    pattern = COMPANIONS[model.path.suffix]
    found = [m for m in members if m.path.parent == model.path.parent and pattern.fullmatch(m.path.name)]
    for member in found:
        if member.size > MAX_COMPANION_BYTES:
            raise ValueError(
                f"{archive} must have vocabularies of at most {MAX_COMPANION_BYTES} bytes, got "
                f"{format_value(str(member.path))} of {member.size} bytes."
            )
    return found


def check_space(folder: Path, size: int) -> None:
    """Raise a `ValueError` unless the disk of a folder has space for the model's files and for the converted model."""
    free = shutil.disk_usage(folder).free
    if free < 2 * size:
        raise ValueError(f"output must be on a disk with {2 * size} free bytes, got {free} in {folder.parent}.")


@contextmanager
def open_archive(path: Path) -> Iterator[list[Member]]:
    """The files in an archive, in its order. Inside the context they can be extracted.

    Raises:
        ValueError: this is not a complete zip or tar archive; or a member is a link, is encrypted or has a path outside
            of the archive, or the members are too many or too large.
    """
    if not path.is_file():
        raise ValueError(f"archive must be an existing file, got {str(path)!r}.")
    try:
        with path.open("rb") as file:
            start = file.read(8)
        with zip_members(path) if start.startswith(ZIP) else tar_members(path, start) as members:
            yield list(checked(path, members))
    except DAMAGED as error:
        raise ValueError(f"{path} must be a complete zip or tar archive, but it cannot be read.") from error
    except OSError as error:
        # gzip and bz2 raise an error without a number for damaged data, and zipfile seeks to a wrong position.
        if error.errno not in (None, errno.EINVAL):
            raise
        raise ValueError(f"{path} must be a complete zip or tar archive, but it cannot be read.") from error


def extract(member: Member, folder: Path) -> Path:
    """Write a member to a file of its name, without the folders of its path."""
    path = folder / member.path.name
    with name_path_in_errors(path), member.open() as source, path.open("xb") as target:
        shutil.copyfileobj(source, target, CHUNK)
    return path


def checked(archive: Path, members: Iterable[Member]) -> Iterator[Member]:
    """Check each member before the next one is read.

    Raises:
        ValueError: a path is unsafe or repeated, or a limit is exceeded.
    """
    size, seen = 0, set()
    for member in members:
        size += member.size
        if size > MAX_BYTES:
            raise ValueError(
                f"{archive} must have at most {MAX_BYTES / 2**30:.0f} GiB of files, got more. Extract a larger archive "
                "and convert the model in its folder."
            )
        check_expansion(archive, size)
        if member.path in seen:
            raise ValueError(f"{archive} must contain each file once, got {format_value(str(member.path))} again.")
        seen.add(member.path)
        yield member


def limited(archive: Path, infos: Iterable[Info]) -> Iterator[Info]:
    """The members of an archive, including folders.

    Raises:
        ValueError: there are more than `MAX_MEMBERS`.
    """
    for number, info in enumerate(infos, start=1):
        if number > MAX_MEMBERS:
            raise ValueError(f"{archive} must have at most {MAX_MEMBERS} members, got more.")
        yield info


@contextmanager
def zip_members(path: Path) -> Iterator[Iterator[Member]]:
    with zipfile.ZipFile(path) as archive:

        def members() -> Iterator[Member]:
            for info in limited(path, archive.infolist()):
                safe = safe_path(path, info.filename)
                kind = stat.S_IFMT(info.external_attr >> 16)  # 0 if the archive has no Unix attributes
                if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                    raise not_a_file(path, info.filename)
                if info.flag_bits & 1:
                    raise ValueError(f"{path} must not be encrypted, but {format_value(info.filename)} is.")
                if not info.is_dir():
                    yield Member(safe, info.file_size, partial(archive.open, info))

        yield members()


@contextmanager
def tar_members(path: Path, start: bytes) -> Iterator[Iterator[Member]]:
    decompressors = [function for magic, function in DECOMPRESSORS.items() if start.startswith(magic)]
    with (
        decompressors[0](path) if decompressors else path.open("rb") as file,
        tarfile.open(fileobj=(headers := LimitedReads(file, path)), mode="r:") as archive,  # type: ignore[call-overload]
    ):

        def members() -> Iterator[Member]:
            for info in limited(path, archive):
                safe = safe_path(path, info.name)
                if not (info.isreg() or info.isdir()):
                    raise not_a_file(path, info.name)
                if info.issparse():
                    raise ValueError(f"{path} must contain no sparse files, got {format_value(info.name)}.")
                if info.isreg():
                    yield Member(safe, info.size, partial(archive.extractfile, info))
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


def safe_path(archive: Path, name: str) -> PurePosixPath:
    """The path of a member.

    Raises:
        ValueError: it is absolute, or has a parent folder `..`, a backslash or a drive.
    """
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name or PureWindowsPath(name).drive:
        raise ValueError(f"{archive} must contain relative paths without '..', got {format_value(name)}.")
    return path


def not_a_file(archive: Path, name: str) -> ValueError:
    return ValueError(
        f"{archive} must contain only files and folders, got {format_value(name)}, which is a link or a device."
    )
