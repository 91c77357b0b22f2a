"""Batches for evaluation by generation: pairs of similar length together, the same search as in translation."""

import math
from collections.abc import Iterator, Sequence

from torch.utils.data import Sampler

from ..translation.texts import Translator


class EvaluationBatches(Sampler[list[int]]):
    """One process's part of the batches in which a `Translator` would translate the sources.

    Every process gets the same number of rows of each batch. Where they do not divide, rows are repeated at the end;
    `sizes` says how many rows of each batch, over all processes, are not repeated.

    Args:
        translator: sorts by length and divides into batches, for all processes together.
        source_lengths: tokens of each source, `[pairs]`.
        max_pairs: the most pairs in a batch of one process.
        process_index: which process this is.
        num_processes: how many processes divide each batch.
    """

    def __init__(
        self,
        translator: Translator,
        source_lengths: Sequence[int],
        max_pairs: int,
        process_index: int = 0,
        num_processes: int = 1,
    ):
        self.process_index, self.num_processes = process_index, num_processes
        most = max_pairs * num_processes
        self.batches = [
            batch[start : start + most]
            for batch in translator.batches(source_lengths)
            for start in range(0, len(batch), most)
        ]

    @property
    def sizes(self) -> list[int]:
        """The number of rows in each batch."""
        return [len(batch) for batch in self.batches]

    @property
    def order(self) -> list[int]:
        """The row at each place of the evaluation."""
        return [row for batch in self.batches for row in batch]

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[list[int]]:
        for batch in self.batches:
            share = math.ceil(len(batch) / self.num_processes)
            filled = batch + batch[-1:] * (share * self.num_processes - len(batch))
            yield filled[share * self.process_index : share * (self.process_index + 1)]
