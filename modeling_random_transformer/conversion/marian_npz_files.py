"""Finds the files next to a model: vocabularies, SentencePiece models and the options of the search."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path, PureWindowsPath
from typing import Any

from ..utils.errors import format_names
from .hidden_files import is_hidden
from .marian_npz_npz import check_format
from .untrusted import read_yaml

VOCABULARY_SUFFIXES = (".yml", ".yaml", ".spm")
FILES = re.compile(r".*\.(yml|yaml|spm)")  # all that `convert_marian_npz` reads besides the model
IS_VOCABULARY = re.compile(r"vocab", re.IGNORECASE)
# As in `opus.src.vocab.yml`, `vocab.trg.spm` and `srcvocab.ende.spm`.
SIDES = (re.compile(r"(?<![a-z])(src|source)", re.I), re.compile(r"(?<![a-z])(trg|tgt|target)", re.I))

Pair = tuple[Path, Path]  # of the source and of the target, which may be equal


@dataclass(frozen=True)
class NpzFiles:
    """The files next to a model.

    Attributes:
        vocabs: the vocabularies.
        spm: the SentencePiece models that split texts.
        decoder: the options of the search, by their names in Marian.
    """

    vocabs: Pair | None = None
    spm: Pair | None = None
    decoder: dict[str, Any] = field(default_factory=dict)


def find_model(path: Path) -> Path:
    """The model file at a path, or in a folder.

    Raises:
        ValueError: the folder does not contain exactly one model, or the file is of another format.
    """
    if not path.is_dir():
        check_format(path)
        return path
    models = [
        file for file in sorted(path.glob("*.npz")) if not (file.name.endswith(".optimizer.npz") or is_hidden(file))
    ]
    if len(models) == 1:
        return models[0]
    for binary in sorted(path.glob("*.bin")):
        if not models and not is_hidden(binary):
            check_format(binary)
    found = format_names(file.name for file in models) or "none"
    raise ValueError(f"{path} must contain one .npz file of Marian, got {found}.")


def find_files(model: Path, vocabs: Sequence[Path] = (), spm: Sequence[Path] = ()) -> NpzFiles:
    """Find the files next to a model that are not given as `vocabs` and `spm`.

    Raises:
        ValueError: a given file does not exist or has another format, or it is ambiguous which files to use.
    """
    decoder = find_decoder_options(model)
    chosen = as_pair("vocabs", vocabs) or find_vocabularies(model.parent, decoder)
    if chosen is None:
        return NpzFiles(decoder=decoder)
    for path in chosen:
        if path.suffix not in VOCABULARY_SUFFIXES:
            raise ValueError(f"vocabs must be files with the suffix .yml or .spm, got {path.name!r}.")
    if len({path.suffix == ".spm" for path in chosen}) > 1:
        raise ValueError(f"vocabs must be either .yml or .spm files, got {chosen[0].name} and {chosen[1].name}.")
    if chosen[0].suffix == ".spm":
        if spm:
            raise ValueError(f"spm must not be given with vocabs in .spm files, got {spm[0]} and {chosen[0].name}.")
        return NpzFiles(chosen, chosen, decoder)
    beside = (model.parent / "source.spm", model.parent / "target.spm")
    found = beside if all(path.is_file() for path in beside) else None
    return NpzFiles(chosen, as_pair("spm", spm) or found, decoder)


def as_pair(name: str, paths: Sequence[Path]) -> Pair | None:
    """One path for both languages, or two.

    Raises:
        ValueError: a file does not exist, or there are more than two.
    """
    if not paths:
        return None
    if len(paths) > 2:
        raise ValueError(f"{name} must be one file, or one for each language, got {len(paths)} files.")
    for path in paths:
        if not path.is_file():
            raise ValueError(f"{name} must be existing files, got {str(path)!r}.")
    return paths[0], paths[-1]


def find_decoder_options(model: Path) -> dict[str, Any]:
    """The options of the search in `<model>.decoder.yml`, which Marian writes, or in `decoder.yml` of OPUS-MT."""
    for path in (Path(f"{model}.decoder.yml"), model.parent / "decoder.yml"):
        if path.is_file():
            return read_yaml(path)
    return {}


def find_vocabularies(folder: Path, decoder: dict[str, Any]) -> Pair | None:
    """The vocabularies that the options name, if they exist in the folder; otherwise the files with such names.

    Raises:
        ValueError: there are several, and the names do not say which is the source's.
    """
    named = decoder.get("vocabs")
    if isinstance(named, list) and named and all(isinstance(name, str) for name in named):
        # Only the last part of a path, which is often that of the machine that trained the model.
        paths = [folder / PureWindowsPath(name).name for name in named]
        if all(path.is_file() for path in paths):
            return as_pair("vocabs", paths)
    found = [
        path
        for path in sorted(folder.iterdir())
        if path.suffix in VOCABULARY_SUFFIXES
        and IS_VOCABULARY.search(path.name)
        and path.is_file()
        and not is_hidden(path)
    ]
    if len(found) == 1:
        return found[0], found[0]
    if not found:
        return None
    source, target = ([path for path in found if side.search(path.name)] for side in SIDES)
    if len(found) == 2 and len(source) == len(target) == 1 and source != target:
        return source[0], target[0]
    names = format_names(path.name for path in found)
    raise ValueError(
        f"vocabs must be given if a folder contains several vocabularies, got {names}. To convert an archive, extract "
        "it and run `random-transformer convert marian-npz --vocabs`."
    )
