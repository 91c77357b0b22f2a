"""Paired measurements: two candidates alternate, and each pair yields one ratio."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass
class Paired:
    """Speedup of the first candidate over the second, one ratio per pair."""

    ratios: list[float]
    ours: float  # median seconds; less reliable than the ratios on a shared machine
    theirs: float

    @property
    def median(self) -> float:
        return statistics.median(self.ratios)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({min(self.ratios):.2f} to {max(self.ratios):.2f})"


def paired(ours: Callable[[], object], theirs: Callable[[], object], pairs: int = 5, repeat: int = 1) -> Paired:
    """Time both candidates, strictly alternating, after one warm-up run of each.

    Args:
        ours: the candidate.
        theirs: the baseline.
        pairs: number of timed pairs.
        repeat: runs per timing, for short workloads.
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
    """Seconds per run; on CUDA measured by events."""
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
