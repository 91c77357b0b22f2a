"""Token-budget batches from a corpus that is streamed, for corpora too large for a tokenized copy on disk."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from ..inputs_random_transformer import chunks
from .batches import TokenBudgetSampler
from .bpe_dropout import BPEDropout, segment_columns
from .mixing import CorpusMixture
from .sources import Corpus, DatasetText, InvalidLine, Line, ParallelLine
from .tokenization import LengthLimits, tokenize_batch
from .validation import LANGUAGE_COLUMNS, ValidationReport, check_on_invalid, raise_if_empty, raise_if_invalid

Row = dict[str, Any]
LINES_PER_CHUNK = 1000


class TokenBudgetStream(IterableDataset):
    """An infinite stream of batches over all epochs; each batch is a list of tokenized rows.

    Each buffer of `buffer_pairs` pairs is tokenized, sorted by length, split into batches and shuffled, as
    `TokenBudgetSampler` does with a complete corpus. One buffer is in memory, and the next one too with `num_workers`.
    Every process reads the complete stream and selects its share of the batches, so that each pair is seen once per
    epoch and all processes compute the same number of steps. The batches do not depend on `num_workers`, and those of
    an optimizer step depend only on `num_processes · gradient_accumulation_steps`. `TranslationTrainer` sets the share.

    Args:
        corpus: the parallel text, or a mixture of several.
        tokenizer: a tokenizer that appends its end token to every text.
        max_tokens: the maximum number of source and target tokens in a batch, including padding.
        buffer_pairs: number of pairs in a buffer.
        limits: longer pairs are skipped.
        on_invalid: `"error"` to raise an error at an invalid line, `"skip"` to skip it.
        seed: determines the order.
        pad_to_multiple_of: the collator rounds the lengths of a batch up to a multiple of this.
        num_workers: number of processes that read and tokenize ahead; 0 to do both in this process. At most one for a
            streaming dataset, since `datasets` would give each worker different files.
        bpe_dropout: segments the texts anew in every epoch. The token budget and the maximum lengths count tokens
            without dropout.

    Raises:
        ValueError: an argument is invalid, a line is invalid and `on_invalid` is `"error"`, a pair is longer than
            `max_tokens`, or an epoch has fewer pairs than there are processes.
    """

    def __init__(
        self,
        corpus: Corpus | CorpusMixture,
        tokenizer: PreTrainedTokenizerBase,
        max_tokens: int,
        *,
        buffer_pairs: int = 100_000,
        limits: LengthLimits = LengthLimits(),  # noqa: B008 (immutable)
        on_invalid: str = "error",
        seed: int = 0,
        pad_to_multiple_of: int = 1,
        num_workers: int = 0,
        bpe_dropout: BPEDropout | None = None,
    ):
        check_on_invalid(on_invalid)
        self.corpus, self.tokenizer, self.max_tokens = corpus, tokenizer, max_tokens
        self.buffer_pairs, self.limits, self.on_invalid, self.seed = buffer_pairs, limits, on_invalid, seed
        self.pad_to_multiple_of = pad_to_multiple_of
        self.bpe_dropout = bpe_dropout
        texts = [part.text for part in corpus.corpora] if isinstance(corpus, CorpusMixture) else [corpus]
        downloads = any(isinstance(text, DatasetText) and text.is_stream for text in texts)
        self.num_workers = min(num_workers, 1) if downloads else num_workers
        self.report = ValidationReport(str(corpus))  # of the last epoch, or of the current one up to now
        self.set_share(0, 1, 1)

    def set_share(self, process_index: int, num_processes: int, gradient_accumulation_steps: int) -> None:
        """Set the share of this process.

        Args:
            process_index: index of this process.
            num_processes: number of processes that share the batches.
            gradient_accumulation_steps: number of batches of each process in an optimizer step.

        Raises:
            ValueError: a buffer has fewer pairs than an optimizer step has batches.
        """
        step_batches = num_processes * gradient_accumulation_steps
        if self.buffer_pairs < step_batches:
            raise ValueError(
                f"buffer_pairs must be at least {step_batches}, the batches of an optimizer step, got "
                f"{self.buffer_pairs}."
            )
        self.process_index, self.num_processes = process_index, num_processes
        self.gradient_accumulation_steps = gradient_accumulation_steps

    def set_max_length(self, positions: int | None) -> None:
        """Skip longer sources and targets, for a model with this number of learned positions; `None` for no limit."""
        self.limits = self.limits.within(positions)
        if self.bpe_dropout is not None:
            self.bpe_dropout.max_length = positions

    def __iter__(self) -> Iterator[list[Row]]:
        if get_worker_info() is not None:
            raise ValueError("num_workers must be given to TokenBudgetStream, got a DataLoader with workers.")
        for epoch in count():
            yield from self.epoch(epoch)

    def epoch(self, number: int) -> Iterator[list[Row]]:
        """This process's batches of one epoch."""
        for index, rows in enumerate(self._buffers(number)):
            (seed,) = np.random.SeedSequence([self.seed, number, index]).generate_state(1).tolist()
            sources, targets = ([row[f"{side}_length"] for row in rows] for side in ("source", "target"))
            batches = TokenBudgetSampler(
                sources,
                targets,
                self.max_tokens,
                self.num_processes,
                seed,
                self.pad_to_multiple_of,
                gradient_accumulation_steps=self.gradient_accumulation_steps,
            )
            if self.bpe_dropout is not None:
                batches.sort_by([len(row["input_ids"]) for row in rows], [len(row["labels"]) for row in rows])
            for batch in islice(batches, self.process_index, None, self.num_processes):
                yield [{name: rows[i][name] for name in ("input_ids", "attention_mask", "labels")} for i in batch]
        raise_if_empty(self.report)

    def _buffers(self, epoch: int) -> Iterator[list[Row]]:
        """Buffers of pairs; a last one with fewer pairs than a step has batches is merged into the previous one."""
        rows, previous = self._rows(epoch), None
        for buffer in chunks(rows, self.buffer_pairs):
            if previous is not None and len(buffer) >= self.num_processes * self.gradient_accumulation_steps:
                yield previous
                previous = None
            previous = buffer if previous is None else previous + buffer
        if previous is not None:
            yield previous

    def _rows(self, epoch: int) -> Iterator[Row]:
        self.report = ValidationReport(str(self.corpus))
        for chunk in self._chunks(epoch):
            self.report.lines += chunk.lines
            for line in chunk.invalid:
                self.report.add(line.reason, line.number)
                raise_if_invalid(self.report, self.on_invalid)
            lengths = np.array([chunk.columns.get(name, []) for name in ("source_length", "target_length")]).T
            exceeded = self.limits.exceeded(lengths)
            for index, number in enumerate(chunk.numbers):
                reason = next((reason for reason, rows in exceeded.items() if rows[index]), None)
                if reason is None:
                    yield {name: values[index] for name, values in chunk.columns.items()}
                else:  # skipped for any value of on_invalid
                    self.report.add(reason, number)

    def _chunks(self, epoch: int) -> Iterable["_Chunk"]:
        corpus = self.corpus.at_epoch(epoch) if isinstance(self.corpus, CorpusMixture) else self.corpus
        options: dict[str, Any] = {}
        if self.num_workers:
            # Prefetch a complete buffer, so that it is ready when the current one is exhausted.
            chunks = -(-self.buffer_pairs // (LINES_PER_CHUNK * self.num_workers))
            options = {"prefetch_factor": max(2, chunks), "worker_init_fn": _disable_tokenizer_threads}
        return DataLoader(
            _Chunks(corpus, self.tokenizer, self.bpe_dropout, (self.seed, epoch)),
            batch_size=None,
            collate_fn=_identity,
            num_workers=self.num_workers,
            generator=torch.Generator(),  # the default generator would change the random state of dropout
            **options,
        )


@dataclass
class _Chunk:
    """Consecutive lines of a corpus: their number, the invalid ones, and line numbers and token ids of the others."""

    lines: int
    invalid: list[InvalidLine]
    numbers: list[int]
    columns: dict[str, list]


class _Chunks(IterableDataset):
    """The chunks of a corpus in order; worker w of n in a `DataLoader` tokenizes chunks w, w + n, w + 2n, …"""

    def __init__(
        self,
        corpus: Corpus | CorpusMixture,
        tokenizer: PreTrainedTokenizerBase,
        bpe_dropout: BPEDropout | None = None,
        seed: tuple[int, int] = (0, 0),
    ):
        self.corpus, self.tokenizer = corpus, tokenizer
        self.bpe_dropout, self.seed = bpe_dropout, seed

    def __iter__(self) -> Iterator[_Chunk]:
        worker = get_worker_info()
        first, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return map(self._tokenize, islice(chunks(self.corpus.lines(), LINES_PER_CHUNK), first, None, step))

    def _tokenize(self, lines: list[Line]) -> _Chunk:
        valid = [line for line in lines if isinstance(line, ParallelLine)]
        texts = {"source": [line.source for line in valid], "target": [line.target for line in valid]}
        numbers = [line.number for line in valid]
        languages = [line.languages for line in valid if line.languages is not None]
        if languages:  # of all lines
            texts |= dict(zip(LANGUAGE_COLUMNS, map(list, zip(*languages, strict=True)), strict=True))
        columns = tokenize_batch(texts, self.tokenizer, words=self.bpe_dropout is not None) if valid else {}
        if self.bpe_dropout is not None and valid:
            columns |= segment_columns(columns, self.bpe_dropout, [(*self.seed, number) for number in numbers])
        return _Chunk(
            lines=len(lines),
            invalid=[line for line in lines if isinstance(line, InvalidLine)],
            numbers=numbers,
            columns=columns,
        )


def _identity(chunk: Any) -> Any:
    return chunk


def _disable_tokenizer_threads(worker: int) -> None:  # noqa: ARG001
    """Disable the tokenizer's threads, which do not survive a fork and would cause a warning."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
