"""Validation and test sets that share no text with the training set, and the texts that given sets share with it."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..base.compressed_files import FORMATS
from .filters import SIDES, text_key
from .sources import ParallelLine

if TYPE_CHECKING:
    from datasets import Dataset  # slow to import

SETS = ("validation", "test")
HELD_OUT = "shares a text with the validation or test set"
Counts = dict[str, int]  # of the texts that two sets share
CANDIDATES = 4  # for each pair of the sets, since pairs with a text of another one are not chosen


class RankedPair(NamedTuple):
    """A pair in an order that is random, but depends on its texts only."""

    rank: bytes
    number: int  # of its line
    source: bytes  # the key
    target: bytes


class Split:
    """The pairs of the validation and test sets.

    The choice is random and depends on the pairs only, not on their order. No two chosen pairs share a source or a
    target, as `text_key` compares them.

    The first attempt keeps only some candidates in memory. If they share too many texts, a second one has the keys of
    all pairs (about 300 bytes each).

    Args:
        read: reads the pairs of the corpus; called once or twice, or not at all without sets.
        sizes: numbers of pairs of the validation set and, optionally, of the test set; empty for no sets.

    Raises:
        ValueError: the sizes are invalid, or there are too few pairs without common texts.
    """

    def __init__(self, read: Callable[[], Iterable[ParallelLine]], sizes: Sequence[int]):
        if len(sizes) > len(SETS) or any(size < 1 for size in sizes):
            raise ValueError(f"split must be one or two positive numbers, got {', '.join(map(str, sizes))}.")
        total = sum(sizes)
        candidates = heapq.nsmallest(CANDIDATES * total, ranked(read()))
        chosen = [*islice(_without_common_texts(candidates), total)]
        if len(chosen) < total:
            candidates = sorted(ranked(read()))
            chosen = [*islice(_without_common_texts(candidates), total)]
        if len(chosen) < total:
            raise ValueError(f"split must have at most {len(chosen)} pairs, which share no text, got {total}.")
        self.sets: dict[int, str] = {}  # by the number of the line
        for name, size in zip(SETS, sizes, strict=False):
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
        if text_key(pair.source) in self.source_keys:
            return None
        if text_key(pair.target) in self.target_keys:
            return None
        return "train"


def ranked(pairs: Iterable[ParallelLine]) -> Iterator[RankedPair]:
    """The keys of pairs, with random numbers that depend on the texts."""
    for pair in pairs:
        source, target = text_key(pair.source), text_key(pair.target)
        rank = blake2b(source + target, digest_size=8).digest()
        yield RankedPair(rank, pair.number, source, target)


def _without_common_texts(candidates: Iterable[RankedPair]) -> Iterator[RankedPair]:
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
    count = 2 if path.suffix in FORMATS else 1
    suffixes = "".join(path.suffixes[-count:])
    return path.with_name(f"{path.name.removesuffix(suffixes)}.{name}{suffixes}")


def shared_texts(train: "Sequence[Dataset]", held_out: "Mapping[str, Dataset]") -> dict[str, Counts]:
    """How many texts of other sets occur in the training set, on the same side, as `text_key` compares them.

    The training set is read once, in about 10 µs per pair; only the keys of the other sets are kept in memory.

    Args:
        train: the pairs of each training corpus, with the columns `source` and `target`.
        held_out: the pairs of the other sets, by name.

    Returns:
        For each set that shares texts, its number of `pairs`, and of those whose `source` and `target` is shared.
    """
    shared = {name: {"pairs": len(pairs)} for name, pairs in held_out.items()}
    for side in SIDES:
        keys = {name: [*map(text_key, pairs[side])] for name, pairs in held_out.items()}
        unseen = set().union(*keys.values())
        for corpus in train:
            for batch in corpus.iter(1000):
                unseen.difference_update(map(text_key, batch[side]))
        for name, keys_of_set in keys.items():
            shared[name][side] = sum(key not in unseen for key in keys_of_set)
    return {name: counts for name, counts in shared.items() if any(counts[side] for side in SIDES)}


def describe_overlap(name: str, counts: Counts) -> str:
    """One line for a set of `shared_texts`."""
    sides = " and ".join(f"{counts[side]:,} {side}s" for side in SIDES)
    return f"{name}: {sides} of {counts['pairs']:,} pairs occur in the training set"
