"""Batches by a budget of tokens from a corpus that is read as it comes, for when no copy of it fits on the disk."""

from collections.abc import Iterator
from itertools import count, islice
from typing import Any

import numpy as np
from torch.utils.data import IterableDataset
from transformers import PreTrainedTokenizerBase

from .batches import TokenBudgetSampler
from .corpus import check_choice, refuse_or_drop, tokenize
from .report import Report
from .sources import Corpus

Row = dict[str, Any]
READ_AT_ONCE = 1000


class TokenBudgetStream(IterableDataset):
    """An endless stream of batches, epoch after epoch, each batch a list of rows of token ids.

    `buffer_pairs` pairs at a time are tokenised, sorted by length, cut into batches and shuffled like a corpus of their
    own (`TokenBudgetSampler`). Memory holds one buffer. Every process reads the whole stream and takes its share of the
    batches, so that every pair is seen once an epoch and all processes are in step.

    Args:
        text: the corpus.
        tokenizer: ends every text with its end token.
        max_tokens: the most padded source and target tokens in a batch.
        buffer_pairs: pairs that are shuffled and sorted among themselves.
        max_source_length: longer sources, in tokens, are dropped; none when `None`.
        max_target_length: the same for targets.
        on_broken: `"refuse"` broken lines when they are met, or `"drop"` them.
        process_index: which process this is.
        num_processes: how many share out the batches.
        seed: fixes the order.

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
        on_broken: str = "refuse",
        process_index: int = 0,
        num_processes: int = 1,
        seed: int = 0,
    ):
        check_choice(on_broken)
        if buffer_pairs < num_processes:
            raise ValueError(f"buffer_pairs must be at least num_processes={num_processes}, got {buffer_pairs}.")
        self.text, self.tokenizer, self.max_tokens = text, tokenizer, max_tokens
        self.buffer_pairs = buffer_pairs
        self.limits = (max_source_length or np.inf, max_target_length or np.inf)
        self.on_broken = on_broken
        self.process_index, self.num_processes, self.seed = process_index, num_processes, seed
        self.report = Report(str(text))  # of the last epoch, or of this one so far

    def __iter__(self) -> Iterator[list[Row]]:
        for epoch in count():
            yield from self.epoch(epoch)

    def epoch(self, number: int) -> Iterator[list[Row]]:
        """This process's batches of one epoch."""
        empty = True
        for index, rows in enumerate(self._buffers()):
            empty = False
            (seed,) = np.random.SeedSequence([self.seed, number, index]).generate_state(1).tolist()
            sources, targets = ([row[f"{side}_length"] for row in rows] for side in ("source", "target"))
            batches = TokenBudgetSampler(sources, targets, self.max_tokens, self.num_processes, seed)
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
        good = self._good_lines()
        while lines := list(islice(good, READ_AT_ONCE)):
            _, sources, targets = zip(*lines, strict=True)
            columns = tokenize({"source": list(sources), "target": list(targets)}, self.tokenizer)
            for index, (line, *_) in enumerate(lines):
                row = {name: values[index] for name, values in columns.items()}
                if row["source_length"] > self.limits[0] or row["target_length"] > self.limits[1]:
                    self.report.add("over-long", line)  # dropped, whatever on_broken says of lines that are broken
                else:
                    yield row

    def _good_lines(self) -> Iterator[tuple[int, str, str]]:
        for line in self.text.lines():
            self.report.lines += 1
            if len(line) == 3:
                yield line
            else:
                self.report.add(line[1], line[0])
                refuse_or_drop(self.report, self.on_broken)
