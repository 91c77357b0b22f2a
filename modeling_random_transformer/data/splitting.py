"""Validation and test sets that share no text with the training set, and the texts that given sets share with it."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
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
    all pairs (about 300 bytes each), and finds the largest possible sets.

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
        chosen = _Matching(candidates, total).pairs()
        if len(chosen) < total:
            candidates = sorted(ranked(read()))
            chosen = _Matching(candidates, total).pairs()
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


class _Matching:
    """Up to `size` candidates of which no two share a source or a target.

    They are a matching of the bipartite graph of sources and targets. A pair is taken if both of its texts are free.
    If these pairs are too few, augmenting paths enlarge the matching to the largest one.
    """

    def __init__(self, candidates: Iterable[RankedPair], size: int):
        self.candidates: dict[bytes, dict[bytes, RankedPair]] = {}  # by source and target
        self.target_of: dict[bytes, bytes] = {}  # the matched pairs
        self.source_of: dict[bytes, bytes] = {}  # the reverse
        self.unreachable: set[bytes] = set()  # targets from which no free one can be reached
        for pair in candidates:
            targets = self.candidates.setdefault(pair.source, {})
            targets.setdefault(pair.target, pair)
            is_free = pair.source not in self.target_of and pair.target not in self.source_of
            if is_free and len(self.target_of) < size:
                self._match(pair.source, pair.target)
        for source in self.candidates:
            if len(self.target_of) == size:
                return
            if source not in self.target_of:
                self._augment(source)

    def pairs(self) -> list[RankedPair]:
        """The matched pairs in their order."""
        matched = [self.candidates[source][target] for source, target in self.target_of.items()]
        return sorted(matched)

    def _match(self, source: bytes, target: bytes) -> None:
        self.target_of[source] = target
        self.source_of[target] = source

    def _augment(self, start: bytes) -> None:
        """Match a free source, if a path of pairs that are alternately free and matched leads to a free target."""
        previous: dict[bytes, bytes] = {}  # the source before each target
        sources = deque([start])
        while sources:
            source = sources.popleft()
            for target in self.candidates[source]:
                if target in previous or target in self.unreachable:
                    continue
                previous[target] = source
                if target not in self.source_of:
                    self._match_path(target, previous)
                    return
                sources.append(self.source_of[target])
        self.unreachable.update(previous)

    def _match_path(self, end: bytes | None, previous: Mapping[bytes, bytes]) -> None:
        """Match the free pairs of a path instead of the matched ones."""
        while end is not None:
            source = previous[end]
            earlier = self.target_of.get(source)
            self._match(source, end)
            end = earlier


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
    shared: dict[str, Counts] = {}
    for name, pairs in held_out.items():
        shared[name] = {"pairs": len(pairs)}
    for side in SIDES:
        keys = {}
        for name, pairs in held_out.items():
            keys[name] = [text_key(text) for text in pairs[side]]
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
