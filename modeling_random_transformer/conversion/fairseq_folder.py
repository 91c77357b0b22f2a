"""Converts a fairseq checkpoint with the dictionaries and BPE codes in its folder."""

import re
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..utils.errors import format_names
from .fairseq import convert_content
from .hidden_files import is_hidden
from .report import ConversionReport
from .safe_loading import read_checkpoint

DICTIONARY = re.compile(r"dict\.(?P<language>.+)\.txt")
CODES = re.compile(r"(.*[._-])?(bpe)?codes?([._-].+)?")
FILES = re.compile(f"{DICTIONARY.pattern}|{CODES.pattern}")  # all that `convert_fairseq_folder` reads

Languages = tuple[str, str]  # of the source and the target


def convert_fairseq_folder(checkpoint: str | Path, output: str | Path) -> ConversionReport:
    """Convert a checkpoint with the files next to it: `dict.<language>.txt`, and BPE codes such as `bpecodes`.

    The languages are those that the checkpoint stores.

    Args:
        checkpoint: a `.pt` file.
        output: a new or empty folder.

    Raises:
        ValueError: see `convert_fairseq`; or it is ambiguous which files to use.
    """
    path = Path(checkpoint)
    content = read_checkpoint(path)
    return convert_content(content, str(path), output, **find_files(path.parent, read_languages(content)))


def read_languages(content: Any) -> Languages | None:
    """The languages in a checkpoint; `None` if it does not store them."""
    if not isinstance(content, Mapping):
        return None
    config = content.get("cfg")
    parts = [content.get("args"), *(config.get(name) for name in ("task", "model") if isinstance(config, Mapping))]
    for part in parts:
        options = vars(part) if isinstance(part, Namespace) else part
        if isinstance(options, Mapping):
            found = options.get("source_lang"), options.get("target_lang")
            if all(isinstance(language, str) for language in found):
                return found  # type: ignore[return-value]
    return None


def find_files(folder: Path, languages: Languages | None) -> dict[str, Any]:
    """The arguments of `convert_fairseq` for the files in a folder; none if there is no dictionary.

    Raises:
        ValueError: it is ambiguous which dictionary or which codes to use.
    """
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and not is_hidden(path)]
    dictionaries = {match["language"]: path for path in files if (match := DICTIONARY.fullmatch(path.name))}
    if not dictionaries:
        return {}
    chosen = choose(folder, "dict.<language>.txt", dictionaries, languages)
    codes = {path.name: path for path in files if CODES.fullmatch(path.name)}
    if not codes:
        return {"source_dict": chosen[0], "target_dict": chosen[1]}
    if languages and len(codes) > 1:  # such as bpecodes.de, or de.codes
        codes = {
            language: path
            for language in languages
            for name, path in codes.items()
            if language in re.split(r"[._-]", name)
        }
    split = choose(folder, "BPE codes", codes, languages)
    return {"source_dict": chosen[0], "target_dict": chosen[1], "source_codes": split[0], "target_codes": split[1]}


def choose(folder: Path, kind: str, files: Mapping[str, Path], languages: Languages | None) -> tuple[Path, Path]:
    """The source's and the target's file: one for both, or those of the languages."""
    if len(files) == 1:
        (file,) = files.values()
        return file, file
    if languages and all(language in files for language in languages):
        return files[languages[0]], files[languages[1]]
    expected = " and ".join(languages) if languages else "the source and the target, which the checkpoint must store"
    found = format_names(path.name for path in files.values()) or "none"
    raise ValueError(f"{folder} must contain one file of {kind}, or those of {expected}, got {found}.")
