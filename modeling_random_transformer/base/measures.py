"""Sizes of folders, and times of calls."""

from collections.abc import Callable, Sequence
from pathlib import Path
from timeit import timeit
from typing import Any

from .files import StrPath


def folder_size(folder: StrPath, pattern: str = "**/*") -> float:
    """The total size of the files in a folder whose paths match a glob pattern, in megabytes (10⁶ bytes)."""
    return sum(file.stat().st_size for file in Path(folder).glob(pattern) if file.is_file()) / 1e6


def time_interleaved(calls: Sequence[Callable[[], Any]], rounds: int) -> list[list[float]]:
    """Time each call once per round, in seconds. Calls are interleaved, so that all see the same load."""
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(rounds):
        for call, seconds in zip(calls, times, strict=True):
            seconds.append(timeit(call, number=1))
    return times
