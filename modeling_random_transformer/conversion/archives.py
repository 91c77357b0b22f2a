"""Converts the model in an archive with the files that belong to it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from ..utils.atomic_files import check_free
from ..utils.errors import format_names, format_value
from .archive_members import Member, extract, open_archive
from .fairseq_folder import FILES as FAIRSEQ_FILES
from .fairseq_folder import convert_fairseq_folder
from .hidden_files import is_hidden
from .marian_npz import convert_marian_npz
from .marian_npz_files import FILES as MARIAN_FILES
from .report import ConversionReport

CONVERTERS: dict[str, Callable[[Path, Path], ConversionReport]] = {
    ".npz": convert_marian_npz,
    ".pt": convert_fairseq_folder,
}
# By the suffix of a model: names of the files that its conversion reads, in the same folder.
COMPANIONS = {".npz": MARIAN_FILES, ".pt": FAIRSEQ_FILES}
OPTIMIZER = ".optimizer.npz"  # the end of the name of Marian's training state
MAX_COMPANION_BYTES = 2**26  # of one vocabulary


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
