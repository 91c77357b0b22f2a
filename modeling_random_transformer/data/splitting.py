"""Validation and test sets that share no text with the training set, and the texts that given sets share with it."""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

from ..utils.compressed_files import FORMATS
from .filters import SIDES, text_key
from .sources import ParallelLine

if TYPE_CHECKING:
    from datasets import Dataset  # slow to import

SETS = ("validation", "test")
HELD_OUT = "shares a text with the validation or test set"
Counts = dict[str, int]  # of the texts that two sets share
CANDIDATES = 4  # for each pair of the sets, since pairs with a text of another one are not chosen


class Split:
    """The pairs of the validation and test sets.

    The choice is random and depends on the pairs only, not on their order. No two chosen pairs share a source or a
    target, as `text_key` compares them.

    Args:
        pairs: the corpus.
        sizes: numbers of pairs of the validation set and, optionally, of the test set.

    Raises:
        ValueError: there are too few pairs without common texts.
    """

    def __init__(self, pairs: Iterable[ParallelLine], sizes: Sequence[int]):
        self.keys: tuple[set[bytes], set[bytes]] = set(), set()  # of sources and targets
        self.sets: dict[int, str] = {}  # by the number of the line
        names = [name for name, size in zip(SETS, sizes, strict=False) for _ in range(size)]
        keyed = ((keys_of(pair), pair.number) for pair in pairs)
        ranked = ((blake2b(b"".join(keys), digest_size=8).digest(), number, keys) for keys, number in keyed)
        for _, number, keys in heapq.nsmallest(CANDIDATES * len(names), ranked):
            if len(self.sets) < len(names) and not self.shares_a_text(keys):
                self.sets[number] = names[len(self.sets)]
                for known, key in zip(self.keys, keys, strict=True):
                    known.add(key)
        if len(self.sets) < len(names):
            found = len(self.sets)
            raise ValueError(f"split must have at most {found} pairs, which share no text, got {len(names)}.")

    def shares_a_text(self, keys: Sequence[bytes]) -> bool:
        """Whether a source or a target is that of a chosen pair."""
        return any(key in known for known, key in zip(self.keys, keys, strict=True))

    def set_of(self, pair: ParallelLine) -> str | None:
        """The set of a pair: `"validation"`, `"test"`, `"train"`, or `None` if it shares a text with a chosen pair."""
        if (name := self.sets.get(pair.number)) is not None:
            return name
        return None if self.shares_a_text(keys_of(pair)) else "train"


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
