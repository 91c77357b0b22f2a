"""Finds the files that belong to a checkpoint, in its folder."""

import os
import re
from collections.abc import Sequence
from pathlib import Path, PurePath, PureWindowsPath
from typing import Any

from ...base.errors import format_value

PathPair = tuple[Path, Path]  # files of source and target, which may be the same
Vocabulary = dict[str, int]  # ids by tokens


def is_hidden(path: PurePath) -> bool:
    """Whether a file is hidden, such as the AppleDouble files `._<name>` that macOS adds to archives."""
    return path.name.startswith(".")


def list_files(folder: Path, pattern: re.Pattern[str]) -> list[Path]:
    """The files in a folder whose names match a pattern, without hidden files, in alphabetical order."""
    return [
        path
        for path in sorted(folder.iterdir())
        if path.is_file() and pattern.fullmatch(path.name) and not is_hidden(path)
    ]


def choose_pair(files: Sequence[Path], source: re.Pattern[str], target: re.Pattern[str]) -> PathPair | None:
    """The source's and the target's file by their names, or one file for both; `None` if it is ambiguous."""
    if len(files) == 1:
        return files[0], files[0]
    sources = [path for path in files if source.search(path.name)]
    targets = [path for path in files if target.search(path.name)]
    if len(sources) == len(targets) == 1 and sources != targets:
        return sources[0], targets[0]
    return None


def find_file(folder: Path, stored: Any) -> Path:
    """The file in a folder with the file name of a stored path. The stored folder is ignored.

    Raises:
        ValueError: there is no such file.
    """
    name = PureWindowsPath(str(stored)).name
    path = folder / name
    if not os.path.isfile(path):  # unlike `Path.is_file`, also for a name that is too long
        raise ValueError(f"{folder} must contain the file of {format_value(stored)}, which is missing.")
    return path
