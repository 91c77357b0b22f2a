"""Batches by a budget of tokens from a corpus that is read as it comes, for when no copy of it fits on the disk."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from .batches import TokenBudgetSampler
from .corpus import check_choice, refuse_or_drop, tokenize
from .report import Report
from .sources import Corpus, DatasetText, Line

Row = dict[str, Any]
READ_AT_ONCE = 1000


class TokenBudgetStream(IterableDataset):
    """An endless stream of batches, epoch after epoch, each batch a list of rows of token ids.

    `buffer_pairs` pairs at a time are tokenised, sorted by length, cut into batches and shuffled like a corpus of their
    own (`TokenBudgetSampler`). Memory holds one buffer, and the next one with `num_workers`. Every process reads the
    whole stream and takes its share of the batches, so that every pair is seen once an epoch and all processes are in
    step. The batches do not depend on `num_workers`.

    Args:
        text: the corpus.
        tokenizer: ends every text with its end token.
        max_tokens: the most padded source and target tokens in a batch.
        buffer_pairs: pairs that are shuffled and sorted among themselves.
        max_source_length: longer sources, in tokens, are dropped; none when `None`.
        max_target_length: the same for targets.
        on_invalid: `"error"` broken lines when they are met, or `"skip"` them.
        process_index: which process this is.
        num_processes: how many share out the batches.
        seed: fixes the order.
        pad_to_multiple_of: what the collator rounds the lengths of a batch up to.
        num_workers: processes that read and tokenize, ahead of what is asked for; 0 to do so in this process. Of a
            streamed data set one does, as `datasets` would give each worker other files.

    Raises:
        ValueError: an argument is not one, a line is broken and refused, a pair is longer than the budget, or an epoch
            has fewer pairs than there are processes.
    """

    def __init__(
        self,
        text: Corpus,
        tokenizer: PreTrainedTokenizerBase,
        max_tokens: int,
        *,
        buffer_pairs: int = 100_000,
        max_source_length: int | None = None,
        max_target_length: int | None = None,
        on_invalid: str = "error",
        process_index: int = 0,
        num_processes: int = 1,
        seed: int = 0,
        pad_to_multiple_of: int = 1,
        num_workers: int = 0,
    ):
        check_choice(on_invalid)
        if buffer_pairs < num_processes:
            raise ValueError(f"buffer_pairs must be at least num_processes={num_processes}, got {buffer_pairs}.")
        self.text, self.tokenizer, self.max_tokens = text, tokenizer, max_tokens
        self.buffer_pairs = buffer_pairs
        self.limits = (max_source_length or np.inf, max_target_length or np.inf)
        self.on_invalid = on_invalid
        self.process_index, self.num_processes, self.seed = process_index, num_processes, seed
        self.pad_to_multiple_of = pad_to_multiple_of
        streamed = isinstance(text, DatasetText) and isinstance(text.dataset, datasets.IterableDataset)
        self.num_workers = min(num_workers, 1) if streamed else num_workers
        self.report = Report(str(text))  # of the last epoch, or of this one so far

    def __iter__(self) -> Iterator[list[Row]]:
        if get_worker_info() is not None:
            raise ValueError("num_workers must be given to TokenBudgetStream, got a DataLoader with workers.")
        for epoch in count():
            yield from self.epoch(epoch)

    def epoch(self, number: int) -> Iterator[list[Row]]:
        """This process's batches of one epoch."""
        empty = True
        for index, rows in enumerate(self._buffers()):
            empty = False
            (seed,) = np.random.SeedSequence([self.seed, number, index]).generate_state(1).tolist()
            sources, targets = ([row[f"{side}_length"] for row in rows] for side in ("source", "target"))
            batches = TokenBudgetSampler(
                sources, targets, self.max_tokens, self.num_processes, seed, self.pad_to_multiple_of
            )
            for batch in islice(batches, self.process_index, None, self.num_processes):
                yield [{name: rows[i][name] for name in ("input_ids", "attention_mask", "labels")} for i in batch]
        if empty:
            raise ValueError(f"{self.report}; there is nothing to train on.")

    def _buffers(self) -> Iterator[list[Row]]:
        """Buffers of pairs, the last joined with the one before where it alone is too small to be shared out."""
        rows, held = self._rows(), None
        while buffer := list(islice(rows, self.buffer_pairs)):
            if held is not None and len(buffer) >= self.num_processes:
                yield held
                held = None
            held = buffer if held is None else held + buffer
        if held is not None:
            yield held

    def _rows(self) -> Iterator[Row]:
        self.report = Report(str(self.text))
        for chunk in self._chunks():
            self.report.lines += chunk.lines
            for line, problem in chunk.broken:
                self.report.add(problem, line)
                refuse_or_drop(self.report, self.on_invalid)
            for index, line in enumerate(chunk.numbers):
                row = {name: values[index] for name, values in chunk.columns.items()}
                if row["source_length"] > self.limits[0] or row["target_length"] > self.limits[1]:
                    self.report.add("over-long", line)  # dropped, whatever on_invalid says of lines that are broken
                else:
                    yield row

    def _chunks(self) -> Iterable["_Chunk"]:
        options: dict[str, Any] = {}
        if self.num_workers:
            # Enough for the next buffer, which is thus ready when the one before has been used.
            chunks = -(-self.buffer_pairs // (READ_AT_ONCE * self.num_workers))
            options = {"prefetch_factor": max(2, chunks), "worker_init_fn": _use_one_thread}
        return DataLoader(
            _Chunks(self.text, self.tokenizer),
            batch_size=None,
            collate_fn=_unchanged,
            num_workers=self.num_workers,
            generator=torch.Generator(),  # or it would draw from the one that dropout draws from
            **options,
        )


@dataclass
class _Chunk:
    """Successive lines of a corpus: how many, the broken ones, and numbers and token ids of the others."""

    lines: int
    broken: list[tuple[int, str]]
    numbers: list[int]
    columns: dict[str, list]


class _Chunks(IterableDataset):
    """The chunks of a corpus in order; each worker of a `DataLoader` tokenizes every n-th of them."""

    def __init__(self, text: Corpus, tokenizer: PreTrainedTokenizerBase):
        self.text, self.tokenizer = text, tokenizer

    def __iter__(self) -> Iterator[_Chunk]:
        lines = self.text.lines()
        chunks = iter(lambda: list(islice(lines, READ_AT_ONCE)), [])
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return map(self._tokenized, islice(chunks, first, None, step))

    def _tokenized(self, lines: list[Line]) -> _Chunk:
        good = [line for line in lines if len(line) == 3]
        sides = {"source": [source for _, source, _ in good], "target": [target for _, _, target in good]}
        return _Chunk(
            lines=len(lines),
            broken=[line for line in lines if len(line) == 2],
            numbers=[number for number, _, _ in good],
            columns=tokenize(sides, self.tokenizer) if good else {},
        )


def _unchanged(chunk: Any) -> Any:
    return chunk


def _use_one_thread(worker: int) -> None:  # noqa: ARG001
    """Threads of the tokenizer do not outlast a fork; it warns of that unless told not to use any."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
