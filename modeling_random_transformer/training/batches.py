"""Batches by a budget of tokens: pairs of like length together, every pair once an epoch, ranks in step."""

from collections.abc import Iterator, Sequence
from itertools import chain

import numpy as np
from torch.utils.data import Sampler

BLOCK = 2**16  # lengths that are Python's numbers, which take much memory, at a time


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches whose padded size, source and target together, stays within a budget (paper 5.1).

    Pairs are sorted by length and cut where the budget is full. Each epoch shuffles pairs of equal lengths among
    themselves and then the batches, both from the seed alone. The cuts stay the same, so an epoch always has the same
    number of batches, and that is a multiple of the number of processes: rank r of n takes every n-th batch from its
    r-th on, as Accelerate's sharding does.

    Args:
        source_lengths: tokens of each pair's source, `[pairs]`.
        target_lengths: tokens of each pair's target, `[pairs]`.
        max_tokens: the most that (longest source + longest target) · pairs may be in a batch.
        num_processes: how many processes share out the batches.
        seed: fixes the order of every epoch.

    Raises:
        ValueError: there are no pairs, the lengths do not match, fewer pairs than processes, or a pair is longer than
            the budget.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        num_processes: int = 1,
        seed: int = 0,
    ):
        self.lengths = np.stack([np.asarray(source_lengths, np.int32), np.asarray(target_lengths, np.int32)], axis=1)
        self.seed = seed
        self.epoch = 0
        self._check(max_tokens, num_processes)
        by_length = self._sorted(np.arange(len(self.lengths)))
        self.cuts = _divisible(_cut(self.lengths[by_length], max_tokens), len(self.lengths), num_processes)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration gives."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.cuts)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = self._sorted(random.permutation(len(self.lengths)))
        batches = np.split(order, self.cuts[1:])
        for number in random.permutation(len(batches)):
            yield batches[number].tolist()

    def padding(self) -> float:
        """The share of padding among all tokens of an epoch's batches, 0 to 1."""
        sizes = np.diff([*self.cuts, len(self.lengths)])
        longest = np.maximum.reduceat(self.lengths[self._sorted(np.arange(len(self.lengths)))], self.cuts)
        return 1 - self.lengths.sum() / (longest.sum(axis=1) * sizes).sum()

    def _sorted(self, order: np.ndarray) -> np.ndarray:
        """By target, then source length; pairs of equal lengths keep the given order."""
        source, target = self.lengths[order].T
        return order[np.lexsort((source, target))]  # the last key is the first to sort by

    def _check(self, max_tokens: int, num_processes: int) -> None:
        pairs = len(self.lengths)
        if pairs < num_processes:
            raise ValueError(f"there must be at least a pair for each of {num_processes} processes, got {pairs} pairs.")
        longest = int(self.lengths.sum(axis=1).max())
        if longest > max_tokens:
            raise ValueError(
                f"max_tokens must hold the longest pair, {longest} tokens of source and target, got {max_tokens}."
            )


def _cut(lengths: np.ndarray, max_tokens: int) -> list[int]:
    """Where each batch starts, with as many pairs in each as fit: `[pairs, 2]` in the order to cut."""
    cuts = [0]
    longest_source = longest_target = 0
    blocks = (lengths[start : start + BLOCK].tolist() for start in range(0, len(lengths), BLOCK))
    for index, (source, target) in enumerate(chain.from_iterable(blocks)):
        longest_source, longest_target = max(longest_source, source), max(longest_target, target)
        if (longest_source + longest_target) * (index + 1 - cuts[-1]) > max_tokens:
            cuts.append(index)
            longest_source, longest_target = source, target
    return cuts


def _divisible(cuts: list[int], pairs: int, processes: int) -> np.ndarray:
    """Halve the largest batches until all processes get equally many."""
    while len(cuts) % processes:
        sizes = np.diff([*cuts, pairs])
        largest = int(sizes.argmax())
        cuts.insert(largest + 1, cuts[largest] + int(sizes[largest]) // 2)
    return np.asarray(cuts)
