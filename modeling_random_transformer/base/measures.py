"""Sizes of folders."""

from pathlib import Path

from .files import StrPath


def folder_size(folder: StrPath, pattern: str = "**/*") -> float:
    """The total size of the files in a folder whose paths match a glob pattern, in megabytes (10⁶ bytes)."""
    return sum(file.stat().st_size for file in Path(folder).glob(pattern) if file.is_file()) / 1e6
