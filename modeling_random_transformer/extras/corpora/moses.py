"""Zip archives of aligned text, one file per language, as OPUS publishes them in the format of Moses."""

import zipfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from ...base.compressed_files import clear_errors
from ...base.errors import format_names
from ...base.languages import matching_code

MAX_BYTES, MAX_RATIO = 2**24, 100  # of a file in the archive; a larger one may have this ratio to the archive


@contextmanager
def open_members(path: Path, codes: Sequence[str]) -> Iterator[dict[str, IO[bytes]]]:
    """Open the files `*.<code>` in an archive for reading, by their names for errors. Nothing is extracted.

    Raises:
        ValueError: the archive does not have exactly one file for each code, is damaged, or compressed too far.
    """
    with clear_errors(path, "zip"), zipfile.ZipFile(path) as archive, ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        for code in codes:
            name = _member(path, archive.namelist(), code)
            size = archive.getinfo(name).file_size
            limit = max(MAX_BYTES, MAX_RATIO * path.stat().st_size)
            if size > limit:
                raise ValueError(f"{path} must have files of at most {limit} bytes, got {name} of {size} bytes.")
            files[f"{path}/{name}"] = stack.enter_context(archive.open(name))
        yield files


def _member(path: Path, names: Sequence[str], code: str) -> str:
    """The name of the file of a language."""
    suffixes = {name: PurePosixPath(name).suffix[1:] for name in names if not name.startswith("__MACOSX/")}
    matching = matching_code(code, filter(None, suffixes.values()))
    members = [name for name, suffix in suffixes.items() if suffix == matching]
    if len(members) != 1:
        raise ValueError(
            f"{path} must contain one file of the language {code!r}, such as corpus.{code}, "
            f"got the files {format_names(names)}."
        )
    return members[0]
