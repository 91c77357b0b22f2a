"""Batch samplers with a token budget. Pairs of similar length share a batch. All processes get equally many batches."""

import math
from collections.abc import Iterator, Sequence
from itertools import cycle, islice

import numpy as np
import torch
from torch.utils.data import Sampler

from ..inputs_random_transformer import batches_by_tokens
from .retokenization import RetokenizedPairs


def padding_multiple(device: torch.device) -> int:
    """The multiple to which lengths are padded: 8 on an accelerator, for fewer distinct shapes, 1 on a CPU."""
    return 1 if device.type == "cpu" else 8


class TokenBudgetSampler(Sampler[list[int]]):
    """Batches with a token budget for padded sources and targets together (paper 5.1).

    Pairs are sorted by length and split into batches within the budget. Each epoch shuffles the pairs of equal
    lengths and then the batches, both determined by the seed. The batch boundaries stay the same, so every epoch has
    the same number of batches, a multiple of the number of batches in an optimizer step. Rank r of n processes takes
    the batches r, r + n, r + 2n, …, as Accelerate's sharding does. Every pair occurs once per epoch, with one
    exception: if all batches contain a single pair and do not fill the last step, some of them are repeated.

    The batches of each step depend only on `num_processes · gradient_accumulation_steps`. A run that is resumed on
    another number of processes with the same product therefore repeats and loses no pair.

    Args:
        lengths: number of tokens of each source and target, `[pairs, 2]`; see `lengths_of`.
        max_tokens: the maximum of (longest source + longest target) · pairs in a batch.
        num_processes: number of processes that share the batches.
        seed: determines the order of every epoch.
        pad_to_multiple_of: the collator rounds the lengths of a batch up to a multiple of this.
        weights: how often each pair occurs per epoch, integers, `[pairs]`; `None` for once.
        gradient_accumulation_steps: number of batches of each process in an optimizer step.
        retokenized: the `RetokenizedPairs`, if the tokens of pairs change with the epoch. `lengths` and the token
            budget then determine the number of pairs in each batch. Every epoch keeps these numbers, and sorts the
            pairs by their lengths in the epoch.

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
        retokenized: RetokenizedPairs | None = None,
    ):
        self.seed = seed
        self.epoch = 0
        self.pad_to_multiple_of = pad_to_multiple_of
        self.retokenized = retokenized
        self.batches_per_step = num_processes * gradient_accumulation_steps
        self.pairs = np.repeat(np.arange(len(lengths)), 1 if weights is None else weights)
        self.set_lengths(lengths)
        if len(self.pairs) < num_processes:
            raise ValueError(
                f"there must be at least one pair for each of {num_processes} processes, got {len(self.pairs)}."
            )
        longest = int(self.lengths.sum(axis=1).max())
        if longest > max_tokens:
            raise ValueError(
                "max_tokens (in training: max_tokens_per_batch) must be at least "
                f"{longest}, the padded length of the longest pair, got {max_tokens}."
            )
        by_length = self._sort(np.arange(len(self.pairs)))
        starts = starts_of_batches(self.lengths[by_length], max_tokens)
        self.batch_starts = split_largest(starts, len(self.pairs), self.batches_per_step)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, which determines the order of the next iteration and the tokens of retokenized pairs."""
        self.epoch = epoch
        if self.retokenized is not None:
            self.retokenized.set_epoch(epoch)
            self.set_lengths(np.array([[*map(len, side)] for side in self.retokenized.ids.values()]).T)

    def set_lengths(self, lengths: np.ndarray) -> None:
        """Set the lengths, `[pairs, 2]`, by which the next epoch is sorted. The batches keep their numbers of pairs."""
        self.lengths = round_up(lengths, self.pad_to_multiple_of)[self.pairs]

    def __len__(self) -> int:
        return self.batches_per_step * math.ceil(len(self.batch_starts) / self.batches_per_step)

    def __iter__(self) -> Iterator[list[int]]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = self._sort(random.permutation(len(self.pairs)))
        batches = np.split(self.pairs[order], self.batch_starts[1:])
        for number in np.resize(random.permutation(len(batches)), len(self)):
            yield batches[number].tolist()

    def _sort(self, order: np.ndarray) -> np.ndarray:
        """Stable sort by target length, then by source length."""
        source, target = self.lengths[order].T
        return order[np.lexsort((source, target))]  # the last key is the primary one


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
            source. The pairs of a batch have the same limit.
    """

    def __init__(
        self,
        lengths: np.ndarray,
        max_tokens: int,
        max_pairs: int,
        num_processes: int = 1,
        pad_to_multiple_of: int = 1,
        limits: Sequence[int] | None = None,
    ):
        padded = round_up(lengths, pad_to_multiple_of).tolist()
        unsplit = batches_by_tokens(padded, max_tokens, limits, max_rows=max_pairs)
        order = np.concatenate(unsplit)
        starts = np.cumsum([0, *map(len, unsplit[:-1])]).tolist()
        starts = split_largest(starts, len(order), num_processes)
        self.num_batches = len(starts)
        total = num_processes * math.ceil(self.num_batches / num_processes)
        self.batches = [*islice(cycle(np.split(order, starts[1:])), total)]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        return (batch.tolist() for batch in self.batches)

    def row_indices(self) -> np.ndarray:
        """The index of each pair of the dataset among the rows of all batches, `[pairs]`."""
        return np.unique(np.concatenate(self.batches), return_index=True)[1]


def round_up(lengths: np.ndarray, multiple: int) -> np.ndarray:
    """Lengths of source and target, rounded up to a multiple as the collator does, `[pairs, 2]`."""
    return -(-np.asarray(lengths, np.int32) // multiple) * multiple


def starts_of_batches(lengths: np.ndarray, max_tokens: int) -> list[int]:
    """Split sorted lengths, `[pairs, 2]`, into batches with as many pairs as possible; returns their starts.

    There are as many batches as `batches_by_tokens` returns, which begins with the longest pairs. This function takes a
    tenth of the time, for the millions of pairs of a training set.
    """
    starts = []
    start = 0
    while start < len(lengths):
        starts.append(start)
        # All pairs are padded to the longest, so each takes at least as many tokens as the first pair.
        most_pairs = max_tokens // max(1, int(lengths[start].sum()))
        longest = np.maximum.accumulate(lengths[start : start + most_pairs]).sum(axis=1)
        padded = longest * np.arange(1, len(longest) + 1)
        start += int(np.searchsorted(padded, max_tokens, side="right"))
    return starts


def split_largest(starts: list[int], pairs: int, multiple: int) -> list[int]:
    """Split the largest batches until their number is a multiple of this, or no batch has two pairs."""
    while len(starts) % multiple:
        sizes = np.diff([*starts, pairs])
        largest = int(sizes.argmax())
        if sizes[largest] < 2:
            break
        starts.insert(largest + 1, starts[largest] + int(sizes[largest]) // 2)
    return starts
