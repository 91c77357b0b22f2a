"""A set of hashes that takes 8 bytes per element."""

from collections.abc import Iterable
from hashlib import blake2b

import numpy as np

HASH_BYTES = 8


class HashSet:
    """64-bit hashes of texts, in sorted arrays whose sizes at least double.

    Two of n different texts have the same hash with a probability of n² / 2^65: 0.0003 for a hundred million.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, texts: Iterable[str]) -> np.ndarray:
        """Add texts, and return for each whether it is new, `[texts]`."""
        digests = (blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest() for text in texts)
        hashes = np.frombuffer(b"".join(digests), dtype="<u8")
        is_new = np.zeros(len(hashes), dtype=bool)
        is_new[np.unique(hashes, return_index=True)[1]] = True
        for run in self._runs:
            positions = np.searchsorted(run, hashes)
            is_new &= run[np.minimum(positions, len(run) - 1)] != hashes
        self._append(np.sort(hashes[is_new]))
        return is_new

    def _append(self, run: np.ndarray) -> None:
        if not len(run):
            return
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            merged = np.concatenate([self._runs.pop(), self._runs.pop()])
            merged.sort(kind="stable")
            self._runs.append(merged)
