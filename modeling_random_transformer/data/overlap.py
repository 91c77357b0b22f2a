"""The texts that validation and test sets share with the training set."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING

from .sources import SIDES
from .words import words_digest

if TYPE_CHECKING:
    from datasets import Dataset  # slow to import

Counts = dict[str, int]  # numbers of texts that two sets share


def shared_texts(train: "Sequence[Dataset]", held_out: "Mapping[str, Dataset]") -> dict[str, Counts]:
    """The number of texts of other sets that occur on the same side of the training set, compared by `words_digest`.

    The training set is read once, in about 10 µs per pair. Only the keys of the other sets are kept in memory.

    Args:
        train: the pairs of each training corpus, with the columns `source` and `target`.
        held_out: the pairs of the other sets, by name.

    Returns:
        For each set that shares texts: its number of `pairs`, and the numbers of pairs with a shared `source` or
        `target`.
    """
    shared = {name: {"pairs": len(pairs)} for name, pairs in held_out.items()}
    for side in SIDES:
        keys_by_set = {name: [*map(words_digest, pairs[side])] for name, pairs in held_out.items()}
        unseen = set(chain.from_iterable(keys_by_set.values()))
        for corpus in train:
            for batch in corpus.iter(1000):
                unseen.difference_update(map(words_digest, batch[side]))
        for name, keys in keys_by_set.items():
            seen = [key for key in keys if key not in unseen]
            shared[name][side] = len(seen)
    return {name: counts for name, counts in shared.items() if any(counts[side] for side in SIDES)}


def describe_overlap(name: str, counts: Counts) -> str:
    """One line for a set of `shared_texts`."""
    sides = " and ".join(f"{counts[side]:,} {side}s" for side in SIDES)
    pairs = counts["pairs"]
    return f"{name}: {sides} of {pairs:,} pairs occur in the training set"
