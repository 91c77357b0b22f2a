"""Token-budget batches from a streamed corpus, for corpora that are too large for a tokenized copy on disk."""

import heapq
import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import count, islice
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from ..inputs_random_transformer import Languages, check_choice, chunks
from .batches import TokenBudgetSampler
from .lengths import NO_LIMITS, TOO_LONG, UNEQUAL, LengthLimits
from .retokenization import Retokenizer
from .sources import SIDES, Corpus, DatasetText, InvalidLine, Line, ParallelLine
from .tokenization import ID_COLUMNS, LENGTH_COLUMNS, lengths_of, skipped_pairs, tokenize_batch
from .validation import ON_INVALID, ValidationReport

TokenizedPair = dict[str, Any]  # token ids, lengths and number of a line
# The number of consecutive lines, the invalid lines, and the tokenized pairs.
Chunk = tuple[int, list[InvalidLine], list[TokenizedPair]]
LINES_PER_CHUNK = 1000


@dataclass(frozen=True)
class CorpusMixture:
    """Several corpora as one stream, in which the lines of each corpus are spread evenly.

    Args:
        corpora: the corpora with their weights.
        sizes: number of lines of each corpus.
    """

    corpora: Sequence[Corpus]
    sizes: Sequence[int]

    def __str__(self) -> str:
        return f"the mixture of {'; '.join(map(str, self.corpora))}"

    def lines(self) -> Iterator[Line]:
        """The lines of an epoch. Their numbers count the lines of all corpora, in the order of the corpora."""
        corpora = map(self._numbered_lines, range(len(self.corpora)))
        return (line for _, _, line in heapq.merge(*corpora))

    def _numbered_lines(self, index: int) -> Iterator[tuple[float, int, Line]]:
        """The relative position of each line of a corpus in the epoch, the index of the corpus, and the line."""
        corpus = self.corpora[index]
        earlier_lines = sum(self.sizes[:index])
        for position, line in enumerate(corpus.lines()):
            numbered = replace(line, number=line.number + earlier_lines)
            for _ in range(corpus.weight):
                yield position / self.sizes[index], index, numbered


@dataclass(eq=False)
class TokenBudgetStream(IterableDataset):
    """An infinite stream of batches over all epochs; each batch is a list of tokenized rows.

    Each buffer of `buffer_pairs` pairs is tokenized, sorted by length, split into batches and shuffled, as
    `TokenBudgetSampler` does with a complete corpus. One buffer is in memory, and with `num_workers` also the next.
    Every process reads the complete stream and selects its share of the batches, so that each pair is seen once per
    epoch and all processes compute the same number of steps. The batches do not depend on `num_workers`, and those of
    an optimizer step depend only on `num_processes · gradient_accumulation_steps`. `TranslationTrainer` sets the share.

    Args:
        corpus: the parallel text, or a mixture of several.
        tokenizer: a tokenizer that appends its end token to every text.
        max_tokens: the maximum number of source and target tokens in a batch, including padding.
        buffer_pairs: number of pairs in a buffer, which has at least one for each batch of an optimizer step.
        limits: longer pairs are skipped.
        on_invalid: `"error"` to raise an error at an invalid line, `"skip"` to skip it.
        seed: determines the order.
        pad_to_multiple_of: the collator rounds the lengths of a batch up to a multiple of this.
        num_workers: number of processes that read and tokenize ahead; 0 to do both in this process. At most one for a
            streaming dataset, since `datasets` would give each worker different files.
        retokenizer: changes the tokens of the pairs in every epoch: `BPEDropout` or `Augmentation`. The token budget
            and the maximum lengths count the tokens without these changes. `TranslationTrainer` sets the
            retokenizer of its arguments. For a model with learned positions, `BPEDropout` needs a `max_length`.

    Raises:
        ValueError: an argument is invalid, a line is invalid and `on_invalid` is `"error"`, a pair is longer than
            `max_tokens`, or an epoch has fewer pairs than there are processes.
    """

    corpus: Corpus | CorpusMixture
    tokenizer: PreTrainedTokenizerBase
    max_tokens: int
    _: KW_ONLY
    buffer_pairs: int = 100_000
    limits: LengthLimits = NO_LIMITS
    on_invalid: str = "error"
    seed: int = 0
    pad_to_multiple_of: int = 1
    num_workers: int = 0
    retokenizer: Retokenizer | None = None

    def __post_init__(self) -> None:
        check_choice(ON_INVALID, on_invalid=self.on_invalid)
        corpora = self.corpus.corpora if isinstance(self.corpus, CorpusMixture) else [self.corpus]
        if any(isinstance(corpus, DatasetText) and corpus.is_streamed for corpus in corpora):
            self.num_workers = min(self.num_workers, 1)
        self.report = ValidationReport(str(self.corpus))  # the report of the current epoch so far
        self.previous_report = self.report  # the report of the previous epoch
        self.set_share(0, 1, 1)

    @property
    def longest_report(self) -> ValidationReport:
        """The report of the current epoch, or of the previous one if it has read more lines."""
        return max(self.previous_report, self.report, key=attrgetter("lines"))

    def set_share(self, process_index: int, num_processes: int, gradient_accumulation_steps: int) -> None:
        """Set the share of this process.

        Args:
            process_index: index of this process.
            num_processes: number of processes that share the batches.
            gradient_accumulation_steps: number of batches of each process in an optimizer step.
        """
        self.process_index = process_index
        self.num_processes = num_processes
        self.gradient_accumulation_steps = gradient_accumulation_steps

    def limit_length(self, max_length: int | None) -> None:
        """Skip texts that exceed the number of learned positions of a model; `None` for no limit."""
        self.limits = self.limits.within(max_length)

    def __iter__(self) -> Iterator[list[TokenizedPair]]:
        if get_worker_info() is not None:
            raise ValueError("num_workers must be given to TokenBudgetStream, got a DataLoader with workers.")
        for epoch in count():
            yield from self.epoch(epoch)

    def epoch(self, number: int) -> Iterator[list[TokenizedPair]]:
        """This process's batches of one epoch."""
        for index, pairs in enumerate(self._buffers(number)):
            seeds = np.random.SeedSequence([self.seed, number, index])
            sampler = TokenBudgetSampler(
                lengths_of_pairs(pairs),
                self.max_tokens,
                self.num_processes,
                int(seeds.generate_state(1)[0]),
                self.pad_to_multiple_of,
                gradient_accumulation_steps=self.gradient_accumulation_steps,
            )
            if self.retokenizer is not None:
                sampler.set_lengths(lengths_of(pairs))
            for batch in islice(sampler, self.process_index, None, self.num_processes):
                yield [{name: pairs[i][name] for name in ID_COLUMNS} for i in batch]  # the collator adds the mask
        self.report.check("skip")

    def _buffers(self, epoch: int) -> Iterator[list[TokenizedPair]]:
        """Buffers of pairs. A last buffer with too few pairs for a step is merged into the previous buffer."""
        previous: list[TokenizedPair] = []
        batches_per_step = self.num_processes * self.gradient_accumulation_steps
        for buffer in chunks(self._pairs(epoch), max(self.buffer_pairs, batches_per_step)):
            if previous and len(buffer) >= batches_per_step:
                yield previous
                previous = []
            previous = previous + buffer
        if previous:
            yield previous

    def _pairs(self, epoch: int) -> Iterator[TokenizedPair]:
        """The tokenized pairs within the limits. Other lines are counted in the report."""
        self.previous_report = self.report
        self.report = ValidationReport(str(self.corpus))
        for lines, invalid, pairs in self._chunks(epoch):
            self.report.lines += lines
            for line in invalid:
                self.report.add(line.reason, line.number)
                if self.on_invalid == "error":
                    self.report.check("error")
            skipped = skipped_pairs(self.limits, lengths_of_pairs(pairs))
            for pair, is_too_long, is_unequal in zip(pairs, skipped[TOO_LONG], skipped[UNEQUAL], strict=True):
                if is_too_long or is_unequal:  # these pairs are skipped also with on_invalid="error"
                    self.report.add(TOO_LONG if is_too_long else UNEQUAL, pair["line"])
                else:
                    yield pair

    def _chunks(self, epoch: int) -> Iterable[Chunk]:
        # Prefetch a complete buffer, so that it is ready when the current one is exhausted.
        lines = LINES_PER_CHUNK * max(1, self.num_workers)
        return DataLoader(
            Chunks(self.corpus, self.tokenizer, self.retokenizer, (self.seed, epoch)),
            batch_size=None,
            collate_fn=tuple,  # the chunk itself
            num_workers=self.num_workers,
            prefetch_factor=max(2, math.ceil(self.buffer_pairs / lines)) if self.num_workers else None,
            generator=torch.Generator(),  # the default generator would change the random state of dropout
        )


def lengths_of_pairs(pairs: list[TokenizedPair]) -> np.ndarray:
    """The lengths of source and target with the ordinary segmentation, `[pairs, 2]`."""
    lengths = [[pair[name] for name in LENGTH_COLUMNS] for pair in pairs]
    return np.array(lengths).reshape(-1, 2)


@dataclass(eq=False)
class Chunks(IterableDataset):
    """The chunks of a corpus in order; worker w of n in a `DataLoader` tokenizes chunks w, w + n, w + 2n, …"""

    corpus: Corpus | CorpusMixture
    tokenizer: PreTrainedTokenizerBase
    retokenizer: Retokenizer | None
    seed: tuple[int, int]

    def __iter__(self) -> Iterator[Chunk]:
        all_chunks = chunks(self.corpus.lines(), LINES_PER_CHUNK)
        worker = get_worker_info()
        if worker is not None:
            # The tokenizer's threads do not survive a fork and would cause a warning.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            all_chunks = islice(all_chunks, worker.id, None, worker.num_workers)
        return map(self._chunk_of, all_chunks)

    def _chunk_of(self, lines: list[Line]) -> Chunk:
        invalid = [line for line in lines if isinstance(line, InvalidLine)]
        valid = [line for line in lines if isinstance(line, ParallelLine)]
        pairs: list[TokenizedPair] = [{}] * len(valid)
        for languages in {line.languages for line in valid}:
            indices = [i for i, line in enumerate(valid) if line.languages == languages]
            tokenized = self._tokenized([valid[i] for i in indices], languages)
            for i, pair in zip(indices, tokenized, strict=True):
                pairs[i] = pair
        return len(lines), invalid, pairs

    def _tokenized(self, lines: list[ParallelLine], languages: Languages) -> Iterator[TokenizedPair]:
        texts = {side: [getattr(line, side) for line in lines] for side in SIDES}
        columns = tokenize_batch(texts, self.tokenizer, languages, with_words=self.retokenizer is not None)
        columns["line"] = [line.number for line in lines]
        if self.retokenizer is not None:
            seeds = [(*self.seed, number) for number in columns["line"]]
            columns |= self.retokenizer.retokenize(texts | columns, seeds)
        return (dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True))
