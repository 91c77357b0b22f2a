"""Batches with a limit on their padded tokens: pairs of similar length together, as many batches on every process."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch
from torch.utils.data import Sampler

Number = TypeVar("Number", int, np.ndarray)


def padding_multiple(device: torch.device) -> int:
    """What the lengths of a batch are rounded up to: 8 on an accelerator, for few different shapes; 1 on a CPU."""
    return 1 if device.type == "cpu" else 8


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches whose padded size, source and target together, stays within a budget (paper 5.1).

    Pairs are sorted by length and cut where the budget is full. Each epoch shuffles pairs of equal lengths among
    themselves and then the batches, both from the seed alone. The cuts stay the same, so an epoch always has the same
    number of batches, and that is a multiple of the number of processes: rank r of n takes every n-th batch from its
    r-th on, as Accelerate's sharding does. Every pair is in one batch of an epoch; only where all batches hold a
    single pair and their number is no multiple of the number of processes, up to n - 1 of them are used twice.

    Args:
        source_lengths: tokens of each pair's source, `[pairs]`.
        target_lengths: tokens of each pair's target, `[pairs]`.
        max_tokens: the largest allowed (longest source + longest target) · pairs of a batch.
        num_processes: number of processes that the batches are distributed over.
        seed: fixes the order of every epoch.
        pad_to_multiple_of: what the collator rounds the lengths of a batch up to.

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
        pad_to_multiple_of: int = 1,
    ):
        self.lengths = _rounded_up(source_lengths, target_lengths, pad_to_multiple_of)
        self.seed = seed
        self.epoch = 0
        self.num_processes = num_processes
        self._check(max_tokens)
        by_length = self._sorted(np.arange(len(self.lengths)))
        self.starts = _divisible(_batch_starts(self.lengths[by_length], max_tokens), len(self.lengths), num_processes)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch whose order the next iteration gives."""
        self.epoch = epoch

    def __len__(self) -> int:
        return _round_up(len(self.starts), self.num_processes)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = self._sorted(random.permutation(len(self.lengths)))
        batches = np.split(order, self.starts[1:])
        for number in np.resize(random.permutation(len(batches)), len(self)):
            yield batches[number].tolist()

    def padding(self) -> float:
        """The share of padding among all tokens of an epoch's batches, 0 to 1."""
        sizes = np.diff([*self.starts, len(self.lengths)])
        longest = np.maximum.reduceat(self.lengths[self._sorted(np.arange(len(self.lengths)))], self.starts)
        return 1 - self.lengths.sum() / (longest.sum(axis=1) * sizes).sum()

    def _sorted(self, order: np.ndarray) -> np.ndarray:
        """By target, then source length; pairs of equal lengths keep the given order."""
        source, target = self.lengths[order].T
        return order[np.lexsort((source, target))]  # the last key is the first to sort by

    def _check(self, max_tokens: int) -> None:
        pairs = len(self.lengths)
        if pairs < self.num_processes:
            raise ValueError(
                f"there must be at least a pair for each of {self.num_processes} processes, got {pairs} pairs."
            )
        longest = int(self.lengths.sum(axis=1).max())
        if longest > max_tokens:
            raise ValueError(
                f"max_tokens must hold the longest pair, {longest} tokens of source and target, got {max_tokens}."
            )


class EvaluationSampler(Sampler[list[int]]):
    """Batches of pairs of similar source length in a fixed order, the longest first, so that memory runs out early.

    The number of batches is a multiple of the number of processes. Every pair is in one of the first `num_batches`;
    with fewer pairs than processes, some batches are repeated after these.

    Args:
        source_lengths: tokens of each pair's source, `[pairs]`.
        target_lengths: tokens of each pair's target, `[pairs]`; zeros without targets.
        max_tokens: the largest allowed (longest source + longest target) · pairs of a batch of several pairs. A longer
            pair is a batch of its own.
        max_pairs: the largest number of pairs in a batch.
        num_processes: number of processes that the batches are distributed over.
    """

    def __init__(
        self,
        source_lengths: Sequence[int] | np.ndarray,
        target_lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        max_pairs: int,
        num_processes: int = 1,
        pad_to_multiple_of: int = 1,
    ):
        lengths = _rounded_up(source_lengths, target_lengths, pad_to_multiple_of)
        order = np.lexsort((lengths[:, 1], lengths[:, 0]))[::-1]
        starts = _divisible(_batch_starts(lengths[order], max_tokens, max_pairs), len(order), num_processes)
        self.num_batches = len(starts)
        batches = np.split(order, starts[1:])
        self.batches = [batches[i % len(batches)] for i in range(_round_up(len(batches), num_processes))]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            yield batch.tolist()

    def positions(self) -> np.ndarray:
        """Where each pair is, in the order of the data set, among the rows of all batches in a row: `[pairs]`."""
        return np.unique(np.concatenate(self.batches), return_index=True)[1]


def _rounded_up(
    source_lengths: Sequence[int] | np.ndarray, target_lengths: Sequence[int] | np.ndarray, multiple: int
) -> np.ndarray:
    """Lengths of source and target as the collator pads them, `[pairs, 2]`."""
    lengths = np.stack([np.asarray(source_lengths, np.int32), np.asarray(target_lengths, np.int32)], axis=1)
    return _round_up(lengths, multiple)


def _round_up(number: Number, multiple: int) -> Number:
    return -(-number // multiple) * multiple


def _batch_starts(lengths: np.ndarray, max_tokens: int, max_pairs: int | None = None) -> list[int]:
    """Where each batch starts, with as many pairs in each as fit, at least one: `[pairs, 2]` in the order to cut."""
    starts = []
    start = 0
    while start < len(lengths):
        starts.append(start)
        # No pair takes less than the first one does, as all are padded to the longest.
        most = max(1, max_tokens // max(1, int(lengths[start].sum())))
        window = lengths[start : start + (most if max_pairs is None else min(most, max_pairs))]
        padded = np.maximum.accumulate(window).sum(axis=1) * np.arange(1, len(window) + 1)
        start += max(1, int(np.searchsorted(padded, max_tokens, side="right")))
    return starts


def _divisible(starts: list[int], pairs: int, processes: int) -> list[int]:
    """Halve the largest batches until all processes get equally many, or no batch has two pairs."""
    while len(starts) % processes:
        sizes = np.diff([*starts, pairs])
        largest = int(sizes.argmax())
        if sizes[largest] < 2:
            break
        starts.insert(largest + 1, starts[largest] + int(sizes[largest]) // 2)
    return starts
