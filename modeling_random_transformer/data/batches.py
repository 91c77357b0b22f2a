"""Batch samplers with a token budget: pairs of similar length share a batch, and all processes get the same number."""

import math
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch.utils.data import Sampler


class SegmentedPairs(Protocol):
    """Pairs whose segmentation changes with the epoch, as `BPEDropoutPairs`."""

    ids: list[list[np.ndarray]]

    def set_epoch(self, epoch: int) -> None:
        """Segment all pairs for this epoch."""
        ...


def padding_multiple(device: torch.device) -> int:
    """Lengths are padded to a multiple of this: 8 on an accelerator, for fewer distinct shapes; 1 on a CPU."""
    return 1 if device.type == "cpu" else 8


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches with a token budget for padded sources and targets together (paper 5.1).

    Pairs are sorted by length and split into batches within the budget. Each epoch shuffles the pairs of equal
    lengths and then the batches, both determined by the seed. The boundaries stay the same, so every epoch has the same
    number of batches, a multiple of those of an optimizer step: rank r of n processes takes the batches r, r + n,
    r + 2n, …, as Accelerate's sharding does. Every pair occurs once per epoch. The only exception: if all batches
    contain a single pair and do not fill the last step, some of them are repeated.

    The batches of each step depend only on `num_processes · gradient_accumulation_steps`. A run that is resumed on
    another number of processes with the same product therefore repeats and loses no pair.

    Args:
        lengths: the tokens of each source and target, `[pairs, 2]`; see `lengths_of`.
        max_tokens: the maximum of (longest source + longest target) · pairs in a batch.
        num_processes: number of processes that share the batches.
        seed: determines the order of every epoch.
        pad_to_multiple_of: the collator rounds the lengths of a batch up to a multiple of this.
        weights: how often each pair occurs per epoch, `[pairs]`; `None` for once. See `WeightedPairs`.
        gradient_accumulation_steps: number of batches of each process in an optimizer step.
        bpe_dropout: the pairs with new segmentations, if the lengths are those without dropout. The token budget
            determines how many pairs each batch has. Every epoch has these numbers of pairs, sorted by the lengths of
            its segmentations.

    Raises:
        ValueError: there are fewer pairs than processes, or a pair is longer than `max_tokens`.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        max_tokens: int,
        num_processes: int = 1,
        seed: int = 0,
        pad_to_multiple_of: int = 1,
        weights: np.ndarray | None = None,
        gradient_accumulation_steps: int = 1,
        bpe_dropout: SegmentedPairs | None = None,
    ):
        self.bpe_dropout = bpe_dropout
        self.lengths = _round_up(lengths, pad_to_multiple_of)
        self.weighted = None if weights is None else WeightedPairs(self.lengths, weights, seed)
        if self.weighted is not None:
            self.lengths = self.weighted.lengths
        self.seed, self.epoch, self.pad_to_multiple_of = seed, 0, pad_to_multiple_of
        self.step_batches = num_processes * gradient_accumulation_steps
        if (pairs := len(self.lengths)) < num_processes:
            raise ValueError(f"there must be at least one pair for each of {num_processes} processes, got {pairs}.")
        if (longest := int(self.lengths.sum(axis=1).max())) > max_tokens:
            allowed = f"at least {longest}, the padded length of the longest pair"
            raise ValueError(f"max_tokens (in training: max_tokens_per_batch) must be {allowed}, got {max_tokens}.")
        by_length = self._sort(np.arange(len(self.lengths)))
        self.starts = _split(_batch_starts(self.lengths[by_length], max_tokens), len(self.lengths), self.step_batches)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order of the next iteration, and segment the pairs for BPE-dropout."""
        self.epoch = epoch
        if self.bpe_dropout is not None:
            self.bpe_dropout.set_epoch(epoch)
            self.sort_by(np.array([[*map(len, ids)] for ids in self.bpe_dropout.ids]).T)

    def sort_by(self, lengths: np.ndarray) -> None:
        """Sort the pairs by other lengths in this epoch; the numbers of pairs in the batches stay the same."""
        self.lengths = _round_up(lengths, self.pad_to_multiple_of)
        if self.weighted is not None:
            self.lengths = self.lengths[self.weighted.epoch(self.epoch)]

    def __len__(self) -> int:
        return self.step_batches * math.ceil(len(self.starts) / self.step_batches)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = self._sort(random.permutation(len(self.lengths)))
        if self.weighted is not None:
            order = self.weighted.epoch(self.epoch)[order]
        batches = np.split(order, self.starts[1:])
        for number in np.resize(random.permutation(len(batches)), len(self)):
            yield batches[number].tolist()

    def _sort(self, order: np.ndarray) -> np.ndarray:
        """Stable sort by target length, then by source length."""
        source, target = self.lengths[order].T
        return order[np.lexsort((source, target))]  # the last key is the primary one


class WeightedPairs:
    """Selects the pairs of each epoch according to their weights.

    A pair of weight 2.4 is selected twice in every epoch, and a third time in 4 of 10 epochs. The n pairs of a weight
    with the fraction r have s additional slots, r · n rounded to at least 1. Slot j has the pair (j · n + k) // s, in
    the order of lengths, where k is s · epoch + c modulo n with a constant c. Thus the number of times that a pair has
    been selected after E epochs is s / n · E, rounded up or down. A slot has the lengths of its longest pairs, so
    that the boundaries of batches are the same in every epoch.

    Args:
        lengths: lengths of source and target in tokens, `[pairs, 2]`.
        weights: how often each pair is selected per epoch, `[pairs]`.
        seed: determines the constants c.
    """

    def __init__(self, lengths: np.ndarray, weights: np.ndarray, seed: int):
        self.groups: list[tuple[np.ndarray, int, int]] = []  # pairs, s, c
        longest = []
        by_length = np.lexsort((lengths[:, 0], lengths[:, 1]))
        for weight in np.unique(weights):
            pairs = by_length[weights[by_length] == weight]
            whole, rest = divmod(float(weight), 1)
            slots = [len(pairs)] * int(whole) + ([max(1, round(rest * len(pairs)))] if rest else [])
            for size in slots:
                self.groups.append((pairs, size, int(np.random.default_rng([seed, size]).integers(len(pairs)))))
                # The positions of a slot in all epochs. Every second range is between two slots.
                starts = np.arange(size) * len(pairs)
                ranges = np.stack([starts // size, (starts + len(pairs) - 1) // size + 1], axis=1).ravel()
                longest.append(np.maximum.reduceat(np.vstack([lengths[pairs], [[0, 0]]]), ranges)[::2])
        self.lengths = np.concatenate(longest)  # of the longest source and target of each slot, [slots, 2]

    def epoch(self, number: int) -> np.ndarray:
        """The index of the pair in each slot, `[slots]`."""
        selected = []
        for pairs, size, constant in self.groups:
            positions = np.arange(size) * len(pairs) + (number * size + constant) % len(pairs)
            selected.append(pairs[positions // size])
        return np.concatenate(selected)


class EvaluationSampler(Sampler[list[int]]):
    """Batches of pairs of similar source length, the longest first, so that out-of-memory errors occur early.

    The number of batches is a multiple of the number of processes. The first `num_batches` of them contain every pair
    once; if there are fewer pairs than processes, batches are repeated after these.

    Args:
        lengths: the tokens of each source and target, `[pairs, 2]`; zeros without targets.
        max_tokens: the maximum of (longest source + longest target) · pairs in a batch of several pairs. A longer pair
            forms a separate batch.
        max_pairs: the maximum number of pairs in a batch.
        num_processes: number of processes that share the batches.
        pad_to_multiple_of: the collator rounds the lengths of a batch up to a multiple of this.
        limits: the limit on the generated tokens of each pair, `[pairs]`, which must not be larger for a shorter
            source; the pairs of a batch have the same limit.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        max_tokens: int,
        max_pairs: int,
        num_processes: int = 1,
        pad_to_multiple_of: int = 1,
        limits: Sequence[int] | np.ndarray | None = None,
    ):
        lengths = _round_up(lengths, pad_to_multiple_of)
        order = np.lexsort((lengths[:, 1], lengths[:, 0]))[::-1]
        changes = [] if limits is None else (np.flatnonzero(np.diff(np.asarray(limits)[order])) + 1).tolist()
        starts = [
            first + start
            for first, pairs in zip([0, *changes], np.split(lengths[order], changes), strict=True)
            for start in _batch_starts(pairs, max_tokens, max_pairs)
        ]
        starts = _split(starts, len(order), num_processes)
        self.num_batches = len(starts)
        batches = np.split(order, starts[1:])
        count = num_processes * math.ceil(len(batches) / num_processes)
        self.batches = [batches[i % len(batches)] for i in range(count)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            yield batch.tolist()

    def positions(self) -> np.ndarray:
        """The index of each pair of the dataset among the rows of all batches, `[pairs]`."""
        return np.unique(np.concatenate(self.batches), return_index=True)[1]


def _round_up(lengths: np.ndarray, multiple: int) -> np.ndarray:
    """Lengths of source and target, rounded up to a multiple as the collator does, `[pairs, 2]`."""
    return -(-np.asarray(lengths, np.int32) // multiple) * multiple


def _batch_starts(lengths: np.ndarray, max_tokens: int, max_pairs: int | None = None) -> list[int]:
    """Split sorted lengths, `[pairs, 2]`, into batches with as many pairs as possible; returns their starts."""
    starts = []
    start = 0
    while start < len(lengths):
        starts.append(start)
        # All pairs are padded to the longest, so none has fewer tokens than the first one.
        limit = max(1, max_tokens // max(1, int(lengths[start].sum())))
        window = lengths[start : start + (limit if max_pairs is None else min(limit, max_pairs))]
        padded = np.maximum.accumulate(window).sum(axis=1) * np.arange(1, len(window) + 1)
        start += max(1, int(np.searchsorted(padded, max_tokens, side="right")))
    return starts


def _split(starts: list[int], pairs: int, multiple: int) -> list[int]:
    """Split the largest batches until their number is a multiple of this, or no batch has two pairs."""
    while len(starts) % multiple:
        sizes = np.diff([*starts, pairs])
        largest = int(sizes.argmax())
        if sizes[largest] < 2:
            break
        starts.insert(largest + 1, starts[largest] + int(sizes[largest]) // 2)
    return starts
