"""Validation and test sets that share no text with the training set, and the texts that given sets share with it."""

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from ..base.compressed_files import FORMATS
from .filters import SIDES, text_key
from .sources import ParallelLine

if TYPE_CHECKING:
    from datasets import Dataset  # slow to import

SETS = ("validation", "test")
HELD_OUT = "shares a text with the validation or test set"
Candidate = tuple[bytes, int, tuple[bytes, bytes]]  # see `ranked`
Counts = dict[str, int]  # of the texts that two sets share
CANDIDATES = 4  # for each pair of the sets, since pairs with a text of another one are not chosen


class Split:
    """The pairs of the validation and test sets.

    The choice is random and depends on the pairs only, not on their order. No two chosen pairs share a source or a
    target, as `text_key` compares them.

    The first attempt keeps only some candidates in memory. If they share too many texts, a second one has the keys of
    all pairs (about 300 bytes each), and finds the largest possible sets.

    Args:
        read: reads the pairs of the corpus; called once or twice.
        sizes: numbers of pairs of the validation set and, optionally, of the test set.

    Raises:
        ValueError: there are too few pairs without common texts.
    """

    def __init__(self, read: Callable[[], Iterable[ParallelLine]], sizes: Sequence[int]):
        names = [name for name, size in zip(SETS, sizes, strict=False) for _ in range(size)]
        chosen = disjoint(heapq.nsmallest(CANDIDATES * len(names), ranked(read())), len(names))
        if len(chosen) < len(names):
            chosen = disjoint(sorted(ranked(read())), len(names))
        if len(chosen) < len(names):
            raise ValueError(f"split must have at most {len(chosen)} pairs, which share no text, got {len(names)}.")
        # By the number of the line. The order is random, so that the sets do not differ.
        self.sets = {number: name for (_, number, _), name in zip(chosen, names, strict=True)}
        self.keys = {keys[0] for *_, keys in chosen}, {keys[1] for *_, keys in chosen}  # of sources and targets

    def shares_a_text(self, keys: Sequence[bytes]) -> bool:
        """Whether a source or a target is that of a chosen pair."""
        return any(key in known for known, key in zip(self.keys, keys, strict=True))

    def set_of(self, pair: ParallelLine) -> str | None:
        """The set of a pair: `"validation"`, `"test"`, `"train"`, or `None` if it shares a text with a chosen pair."""
        if (name := self.sets.get(pair.number)) is not None:
            return name
        return None if self.shares_a_text(keys_of(pair)) else "train"


def ranked(pairs: Iterable[ParallelLine]) -> Iterator[Candidate]:
    """A random number that depends on the texts, the number of the line and the keys of each pair."""
    for pair in pairs:
        keys = keys_of(pair)
        yield blake2b(b"".join(keys), digest_size=8).digest(), pair.number, keys


def disjoint(candidates: Iterable[Candidate], size: int) -> list[Candidate]:
    """Up to `size` candidates of which no two share a source or a target, in their order.

    They are a matching of the bipartite graph of sources and targets. A pair is taken if both of its texts are free.
    If these pairs are too few, augmenting paths enlarge the matching to the largest one.
    """
    pairs: dict[bytes, dict[bytes, Candidate]] = {}  # by source and target
    target_of: dict[bytes, bytes] = {}
    source_of: dict[bytes, bytes] = {}
    for candidate in candidates:
        source, target = candidate[-1]
        pairs.setdefault(source, {}).setdefault(target, candidate)
        if len(target_of) < size and source not in target_of and target not in source_of:
            target_of[source] = target
            source_of[target] = source
    unreachable: set[bytes] = set()
    for source in pairs:
        if len(target_of) < size and source not in target_of:
            augment(source, pairs, target_of, source_of, unreachable)
    return sorted(pairs[source][target] for source, target in target_of.items())


def augment(
    start: bytes,
    pairs: Mapping[bytes, Iterable[bytes]],
    target_of: dict[bytes, bytes],
    source_of: dict[bytes, bytes],
    unreachable: set[bytes],
) -> None:
    """Match a free source, if a path of pairs that are alternately free and chosen leads to a free target.

    Args:
        start: the source.
        pairs: the targets of each source.
        target_of: the chosen target of each matched source.
        source_of: the reverse of `target_of`.
        unreachable: targets from which no free one can be reached; grows with each search that fails.
    """
    previous: dict[bytes, bytes] = {}  # the source before each target
    sources = deque([start])
    while sources:
        source = sources.popleft()
        for target in pairs[source]:
            if target in previous or target in unreachable:
                continue
            previous[target] = source
            if target in source_of:
                sources.append(source_of[target])
            else:
                choose_path(target, previous, target_of, source_of)
                return
    unreachable.update(previous)


def choose_path(
    end: bytes | None, previous: Mapping[bytes, bytes], target_of: dict[bytes, bytes], source_of: dict[bytes, bytes]
) -> None:
    """Choose the free pairs of a path instead of the chosen ones; see `augment`."""
    while end is not None:
        source = previous[end]
        earlier = target_of.get(source)
        target_of[source] = end
        source_of[end] = source
        end = earlier


def keys_of(pair: ParallelLine) -> tuple[bytes, bytes]:
    """The keys of the source and the target."""
    return text_key(pair.source), text_key(pair.target)


def name_of_set(path: Path, name: str) -> Path:
    """`clean.validation.tsv.gz` for `clean.tsv.gz`."""
    suffixes = "".join(path.suffixes[-2 if path.suffix in FORMATS else -1 :])
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
    shared: dict[str, Counts] = {name: {"pairs": len(pairs)} for name, pairs in held_out.items()}
    for side in SIDES:
        keys = {name: [text_key(text) for text in pairs[side]] for name, pairs in held_out.items()}
        unseen = {key for each in keys.values() for key in each}
        for batch in (batch for pairs in train for batch in pairs.iter(1000)):
            unseen.difference_update(map(text_key, batch[side]))
        for name, each in keys.items():
            shared[name][side] = sum(key not in unseen for key in each)
    return {name: counts for name, counts in shared.items() if any(counts[side] for side in SIDES)}


def describe_overlap(name: str, counts: Counts) -> str:
    """One line for a set of `shared_texts`."""
    sides = " and ".join(f"{counts[side]:,} {side}s" for side in SIDES)
    return f"{name}: {sides} of {counts['pairs']:,} pairs occur in the training set"
