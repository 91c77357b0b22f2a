"""Paired measurement: two candidates in turn, again and again, and the ratio of each pair."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass
class Paired:
    """How many times as fast the first candidate is as the second, pair by pair."""

    ratios: list[float]
    ours: float  # median seconds, for orientation only: machines drift
    theirs: float

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.ratios):.2f} to {max(self.ratios):.2f})"


def paired(ours: Callable[[], object], theirs: Callable[[], object], pairs: int = 5, repeat: int = 1) -> Paired:
    """Time both, strictly alternating, after one run of each that does not count.

    Args:
        ours: what is measured.
        theirs: what it is measured against.
        pairs: how often both are timed.
        repeat: runs in each timing, for work that is over too soon to be timed alone.
    """
    for candidate in (ours, theirs):
        candidate()
    times = [(seconds(ours, repeat), seconds(theirs, repeat)) for _ in range(pairs)]
    return Paired(
        [slow / fast for fast, slow in times],
        statistics.median(pair[0] for pair in times),
        statistics.median(pair[1] for pair in times),
    )


def seconds(work: Callable[[], object], repeat: int) -> float:
    """Seconds of one run. On a CUDA device, the time until its work is done, by events."""
    if torch.cuda.is_available():
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeat):
            work()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1000 / repeat
    start = time.perf_counter()
    for _ in range(repeat):
        work()
    return (time.perf_counter() - start) / repeat
