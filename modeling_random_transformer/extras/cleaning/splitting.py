"""Validation and test sets that share no text with the training set."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from ...base.formats import COMPRESSIONS
from ...data.sources import ParallelLine
from ...data.words import words_digest

HELD_OUT_SETS = ("validation", "test")
SHARES_HELD_OUT_TEXT = "shares a text with the validation or test set"
CANDIDATES = 4  # candidates per held-out pair: a pair with a text of an earlier one is not chosen


class RankedPair(NamedTuple):
    """A pair in an order that is random, but depends on its texts only."""

    rank: bytes
    number: int  # line number in the corpus
    source: bytes  # the key
    target: bytes


class Split:
    """The pairs of the validation and test sets.

    The choice is random and depends on the pairs only, not on their order. No two chosen pairs share a source or a
    target, as `words_digest` compares them.

    The first attempt keeps only some candidates in memory. If they share too many texts, a second one has the keys of
    all pairs (about 300 bytes each).

    Args:
        read: reads the pairs of the corpus; called once or twice, or not at all without sets.
        sizes: numbers of pairs of the validation set and, optionally, of the test set; empty for no sets.

    Raises:
        ValueError: the sizes are invalid, or there are too few pairs without common texts.
    """

    def __init__(self, read: Callable[[], Iterable[ParallelLine]], sizes: Sequence[int]):
        if len(sizes) > len(HELD_OUT_SETS) or any(size < 1 for size in sizes):
            raise ValueError(f"split must be one or two positive numbers, got {', '.join(map(str, sizes))}.")
        total = sum(sizes)
        candidates = heapq.nsmallest(CANDIDATES * total, ranked(read()))
        chosen = [*islice(without_common_texts(candidates), total)]
        if len(chosen) < total:
            candidates = sorted(ranked(read()))
            chosen = [*islice(without_common_texts(candidates), total)]
        if 0 < len(chosen) < total:  # without a pair, the report of the filters is the error
            raise ValueError(f"split must have at most {len(chosen)} pairs, which share no text, got {total}.")
        self.sets: dict[int, str] = {}  # line number → name of the set
        for name, size in zip(HELD_OUT_SETS, sizes, strict=False):
            first = len(self.sets)
            self.sets |= {pair.number: name for pair in chosen[first : first + size]}
        self.source_keys = {pair.source for pair in chosen}
        self.target_keys = {pair.target for pair in chosen}

    def set_of(self, pair: ParallelLine) -> str | None:
        """The set of a pair: `"validation"`, `"test"`, `"train"`, or `None` if it shares a text with a chosen pair."""
        if not self.sets:
            return "train"
        if pair.number in self.sets:
            return self.sets[pair.number]
        if words_digest(pair.source) in self.source_keys:
            return None
        if words_digest(pair.target) in self.target_keys:
            return None
        return "train"


def ranked(pairs: Iterable[ParallelLine]) -> Iterator[RankedPair]:
    """The keys of pairs, with random numbers that depend on the texts."""
    for pair in pairs:
        source = words_digest(pair.source)
        target = words_digest(pair.target)
        rank = blake2b(source + target, digest_size=8).digest()
        yield RankedPair(rank, pair.number, source, target)


def without_common_texts(candidates: Iterable[RankedPair]) -> Iterator[RankedPair]:
    """The candidates that share no source and no target with an earlier one of them."""
    sources = set()
    targets = set()
    for pair in candidates:
        if pair.source not in sources and pair.target not in targets:
            sources.add(pair.source)
            targets.add(pair.target)
            yield pair


def name_of_set(path: Path, name: str) -> Path:
    """`clean.validation.tsv.gz` for `clean.tsv.gz`."""
    count = 2 if path.suffix.lower() in COMPRESSIONS else 1
    suffixes = "".join(path.suffixes[-count:])
    return path.with_name(f"{path.name.removesuffix(suffixes)}.{name}{suffixes}")
