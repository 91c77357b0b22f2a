"""Validation and test sets that share no text with the training set, chosen from one corpus."""

import heapq
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path

from ..utils.compressed_files import FORMATS
from .filters import text_key
from .sources import ParallelLine

SETS = ("validation", "test")
HELD_OUT = "shares a text with the validation or test set"
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
