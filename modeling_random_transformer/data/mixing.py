"""Several corpora in one training set: their weights, the pairs of each epoch, and one stream of all of them."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .sources import Corpus, Line, ParallelText

GOLDEN_RATIO = 0.6180339887498949  # its multiples modulo 1 are spread evenly


def set_names(split: str, corpora: Sequence[Corpus]) -> list[str]:
    """The names of validation or test sets: `["test"]`, `["test en-de", "test en-fr"]`, `["test news", "test talks"]`.

    Args:
        split: `"validation"` or `"test"`.
        corpora: one per set.
    """
    if len(corpora) == 1 and not corpora[0].direction:
        return [split]
    # The languages, or the name of the source file without its extension.
    short = [Path(corpus.source).stem if isinstance(corpus, ParallelText) else str(corpus) for corpus in corpora]
    names = [corpus.direction or name for corpus, name in zip(corpora, short, strict=True)]
    numbered = [
        f"{name} {names[: i + 1].count(name)}" if names.count(name) > 1 else name for i, name in enumerate(names)
    ]
    return [f"{split} {name}" for name in numbered]


def temperature_weights(sizes: Sequence[int], temperature: float) -> list[float]:
    """The weights of corpora whose shares of an epoch are proportional to size^(1 / temperature).

    Each pair of the largest corpus is seen once per epoch. 1 keeps the sizes; the larger the temperature, the more
    often pairs of small corpora are seen (Arivazhagan et al. 2019).

    Args:
        sizes: number of pairs of each corpus.
        temperature: positive.
    """
    return [(size / max(sizes)) ** (1 / temperature - 1) for size in sizes]


class WeightedPairs:
    """Selects the pairs of each epoch according to their weights.

    A pair of weight 2.4 is selected twice in every epoch, and a third time in 4 of 10 epochs. The n pairs of a weight
    with the fraction r have s additional slots, r · n rounded to at least 1. Slot j has the pair (j · n + k) // s, in
    the order of lengths, where k is s · epoch + c modulo n with a constant c. Thus the number of times that a pair has
    been selected after E epochs is s / n · E, rounded up or down. A slot has the lengths of its longest pairs, so
    that the boundaries of batches are the same in every epoch.

    Args:
        lengths: lengths of source and target in tokens, `[pairs, 2]`.
        weights: how often each pair is selected per epoch, `[pairs]`.
        seed: determines the constants c.
    """

    def __init__(self, lengths: np.ndarray, weights: np.ndarray, seed: int):
        self.groups: list[tuple[np.ndarray, int, int]] = []  # pairs, s, c
        longest = []
        by_length = np.lexsort((lengths[:, 0], lengths[:, 1]))
        for weight in np.unique(weights):
            pairs = by_length[weights[by_length] == weight]
            whole, rest = divmod(float(weight), 1)
            slots = [len(pairs)] * int(whole) + ([max(1, round(rest * len(pairs)))] if rest else [])
            for size in slots:
                self.groups.append((pairs, size, int(np.random.default_rng([seed, size]).integers(len(pairs)))))
                # The positions of a slot in all epochs. Every second range is between two slots.
                starts = np.arange(size) * len(pairs)
                ranges = np.stack([starts // size, (starts + len(pairs) - 1) // size + 1], axis=1).ravel()
                longest.append(np.maximum.reduceat(np.vstack([lengths[pairs], [[0, 0]]]), ranges)[::2])
        self.lengths = np.concatenate(longest)  # of the longest source and target of each slot, [slots, 2]

    def epoch(self, number: int) -> np.ndarray:
        """The index of the pair in each slot, `[slots]`."""
        return np.concatenate(
            [
                pairs[(np.arange(size) * len(pairs) + (number * size + constant) % len(pairs)) // size]
                for pairs, size, constant in self.groups
            ]
        )


@dataclass(frozen=True)
class CorpusMixture:
    """Several corpora as one stream, in which the lines of each corpus are spread evenly.

    Args:
        corpora: the corpora with their weights.
        sizes: number of lines of each corpus.
        epoch: the epoch, which determines the lines of corpora with a fractional weight.
    """

    corpora: Sequence[Corpus]
    sizes: Sequence[int]
    epoch: int = 0

    def __str__(self) -> str:
        return f"the mixture of {'; '.join(map(str, self.corpora))}"

    def lines(self) -> Iterator[Line]:
        """The lines of the epoch. Their numbers count the lines of all corpora, in the order of the corpora."""
        positions = (self._positions(index) for index in range(len(self.corpora)))
        return (line for _, _, line in heapq.merge(*positions))

    def _positions(self, index: int) -> Iterator[tuple[float, int, Line]]:
        """The relative position of each line of a corpus in the epoch, the index of the corpus, and the line."""
        corpus, first = self.corpora[index], sum(self.sizes[:index])
        whole, rest = divmod(corpus.weight, 1)
        for position, line in enumerate(corpus.lines()):
            phase = position * GOLDEN_RATIO % 1
            copies = int(whole) + int(rest * (self.epoch + 1) + phase) - int(rest * self.epoch + phase)
            for _ in range(copies):
                yield position / self.sizes[index], index, replace(line, number=line.number + first)
