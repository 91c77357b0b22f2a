"""Several corpora in one training set: their weights, the pairs of each epoch, and one stream of all of them."""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from .sources import Corpus, InvalidLine, Languages, Line, ParallelLine, ParallelText

GOLDEN_RATIO = 0.6180339887498949  # its multiples modulo 1 are spread evenly


@dataclass(frozen=True)
class CorpusSpec:
    """One of the corpora of a set.

    Args:
        text: the parallel text.
        weight: how often each pair is seen per epoch: 2 for twice, 0.5 for every other epoch.
        languages: the codes of the languages of sources and targets, for a tokenizer with language tags.
    """

    text: Corpus
    weight: float = 1.0
    languages: Languages | None = None

    def __str__(self) -> str:
        return str(self.text)

    @property
    def direction(self) -> str | None:
        """The languages, such as `"en-de"`; `None` without languages."""
        return None if self.languages is None else "-".join(self.languages)

    @property
    def name(self) -> str:
        """A short name: the languages, or the name of the source file without its extension."""
        if self.direction is not None:
            return self.direction
        return Path(self.text.source).stem if isinstance(self.text, ParallelText) else str(self.text)


def set_names(split: str, corpora: Sequence[CorpusSpec]) -> list[str]:
    """The names of validation or test sets: `["test"]`, `["test en-de", "test en-fr"]`, `["test news", "test talks"]`.

    Args:
        split: `"validation"` or `"test"`.
        corpora: one per set.
    """
    if len(corpora) == 1 and corpora[0].languages is None:
        return [split]
    names = [corpus.name for corpus in corpora]
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

    An epoch has a fixed number of slots with fixed maximum lengths, so that the boundaries of batches are the same in
    every epoch. A weight of 2 is two slots per pair. With a weight of 0.5, two pairs of similar length share a slot:
    each of them is selected in every other epoch. With a weight such as 0.75, the selection is every 4/3-th pair in the
    order of lengths, and moves by one pair in each epoch: after any number of epochs, the numbers of times that pairs
    of the same weight have been selected differ by at most one.

    Args:
        lengths: lengths of source and target in tokens, `[pairs, 2]`.
        weights: how often each pair is selected per epoch, `[pairs]`.
        seed: determines the pairs that are selected first.
    """

    def __init__(self, lengths: np.ndarray, weights: np.ndarray, seed: int):
        self.seed = seed
        by_length = np.lexsort((lengths[:, 0], lengths[:, 1]))
        orders, starts, ends, offset, first = [], [], [], 0, 0
        self.moving: list[tuple[slice, int]] = []  # slots for `_moving`, and the number of their pairs
        for weight in np.unique(weights):
            order = by_length[weights[by_length] == weight]
            for slots, is_moving in _slots(len(order), float(weight)):
                bounds = np.arange(slots + 1) * len(order)
                starts.append(offset + bounds[:-1] // slots)
                # The pairs of moving slots overlap if the number of pairs is not a multiple of the number of slots.
                ends.append(offset + (-(-bounds[1:] // slots) if is_moving else bounds[1:] // slots))
                if is_moving:
                    self.moving.append((slice(first, first + slots), len(order)))
                first += slots
            orders.append(order)
            offset += len(order)
        self.order = np.concatenate(orders)  # pair indices; a slot has consecutive ones
        self.starts = np.concatenate(starts)
        self.sizes = np.concatenate(ends) - self.starts
        # Lengths of the longest source and target of each slot, [slots, 2]. Every second range is between two slots.
        ranges = np.stack([self.starts, self.starts + self.sizes], axis=1).ravel()
        self.lengths = np.maximum.reduceat(np.vstack([lengths[self.order], [[0, 0]]]), ranges)[::2]

    def epoch(self, number: int) -> np.ndarray:
        """The index of the pair in each slot, `[slots]`."""
        turns = np.zeros_like(self.sizes)
        for size in np.unique(self.sizes):
            # Each of the `size` pairs of a slot has a turn in `size` consecutive epochs.
            cycle, turn = divmod(number, int(size))
            random = np.random.default_rng([self.seed, int(size), cycle])
            slots = self.sizes == size
            turns[slots] = (turn + random.integers(size, size=slots.sum())) % size
        positions = self.starts + turns
        for slots, pairs in self.moving:
            offset = np.random.default_rng([self.seed, pairs]).integers(pairs)
            positions[slots] = self.starts[slots.start] + _moving(pairs, slots.stop - slots.start, number + int(offset))
        return self.order[positions]


def _slots(pairs: int, weight: float) -> list[tuple[int, bool]]:
    """The slots that pairs of this weight are divided into: once per whole number, once for the rest.

    Returns:
        The numbers of slots, and whether their pairs are selected by `_moving`, which the rests 1/2, 1/3, ... do not
        require.
    """
    rest = weight % 1
    whole = [(pairs, False)] * int(weight)
    if not rest:
        return whole
    return [*whole, (max(1, round(rest * pairs)), abs(rest * round(1 / rest) - 1) > 1e-9)]


def _moving(pairs: int, slots: int, epoch: int) -> np.ndarray:
    """The positions of the selected pairs, `[slots]`: every pairs / slots-th pair, one position lower in each epoch.

    Position i is selected if a multiple of pairs / slots is above i + epoch and at most i + epoch + 1.
    """
    epoch %= pairs
    multiples = epoch * slots // pairs + np.arange(1, slots + 1)
    return (multiples * pairs - 1) // slots - epoch


@dataclass(frozen=True)
class CorpusMixture:
    """Several corpora as one stream, in which the lines of each corpus are spread evenly.

    Args:
        corpora: the corpora with their weights.
        sizes: number of lines of each corpus.
        epoch: the epoch, which determines the lines of corpora with a fractional weight.
    """

    corpora: Sequence[CorpusSpec]
    sizes: Sequence[int]
    epoch: int = 0

    def __str__(self) -> str:
        return f"the mixture of {'; '.join(map(str, self.corpora))}"

    def at_epoch(self, number: int) -> "CorpusMixture":
        """The stream of another epoch."""
        return replace(self, epoch=number)

    def lines(self) -> Iterator[Line]:
        """The lines of the epoch. Their numbers count the lines of all corpora, in the order of the corpora."""
        positions = (self._positions(index) for index in range(len(self.corpora)))
        return (line for _, _, line in heapq.merge(*positions))

    def _positions(self, index: int) -> Iterator[tuple[float, int, Line]]:
        """The relative position of each line of a corpus in the epoch, the index of the corpus, and the line."""
        corpus, first = self.corpora[index], sum(self.sizes[:index])
        whole, rest = divmod(corpus.weight, 1)
        for position, line in enumerate(corpus.text.lines()):
            phase = position * GOLDEN_RATIO % 1
            copies = int(whole) + int(rest * (self.epoch + 1) + phase) - int(rest * self.epoch + phase)
            for _ in range(copies):
                yield position / self.sizes[index], index, _completed(line, line.number + first, corpus.languages)


def _completed(line: Line, number: int, languages: Languages | None) -> Line:
    """The line with another number and with its languages."""
    if isinstance(line, InvalidLine):
        return replace(line, number=number)
    return ParallelLine(number, line.source, line.target, languages)
