"""Zip archives of aligned text, one file per language, as OPUS publishes them in the format of Moses."""

import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from ...base.compressed_files import damaged_file_errors
from ...base.errors import format_names
from .languages import matching_code

# A file of more than MAX_BYTES may be at most MAX_RATIO times as large as the archive.
MAX_BYTES, MAX_RATIO = 2**24, 100


@contextmanager
def open_members(path: Path, codes: Sequence[str]) -> Iterator[dict[str, IO[bytes]]]:
    """Open the files `*.<code>` in an archive for reading, by their names for errors. Nothing is extracted.

    Raises:
        ValueError: the archive does not have exactly one corpus with a file for each code, is damaged, or compressed
            too far.
    """
    with damaged_file_errors(path, "zip"), zipfile.ZipFile(path) as archive, ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        for name in members_of(path, archive.namelist(), codes):
            size = archive.getinfo(name).file_size
            limit = max(MAX_BYTES, MAX_RATIO * path.stat().st_size)
            if size > limit:
                raise ValueError(f"{path} must have files of at most {limit} bytes, got {name} of {size} bytes.")
            files[f"{path}/{name}"] = stack.enter_context(archive.open(name))
        yield files


def members_of(path: Path, names: Sequence[str], codes: Sequence[str]) -> list[str]:
    """The names of the files of the languages: of equal names before the suffix, or else of all files."""
    corpora: dict[str, list[str]] = defaultdict(list)
    files = []
    for name in names:
        is_folder = name.endswith("/")
        if suffix_of(name) and not is_folder and not name.startswith("__MACOSX/"):
            files.append(name)
            corpora[PurePosixPath(name).stem].append(name)
    members = with_languages([*corpora.values()], codes) or with_languages([files], codes)
    is_one_corpus = len(members) == len({*members}) == len(codes)
    if not is_one_corpus:
        examples = " and ".join(f"corpus.{code}" for code in codes)
        raise ValueError(
            f"{path} must contain one corpus, such as {examples}, got the files {format_names(names) or 'none'}."
        )
    return members


def with_languages(corpora: Sequence[Sequence[str]], codes: Sequence[str]) -> list[str]:
    """The files of the languages in all corpora that have a file for each of them."""
    members: list[str] = []
    for names in corpora:
        suffixes = [suffix_of(name) for name in names]
        matching = [matching_code(code, suffixes) for code in codes]
        if None in matching:
            continue
        for code in matching:
            members += [name for name in names if suffix_of(name) == code]
    return members


def suffix_of(name: str) -> str:
    """The suffix of a file without the dot: in these archives, its language."""
    return PurePosixPath(name).suffix[1:]
