"""Validation of parallel text. Invalid lines are counted by reason, and the first line numbers are reported."""

import logging
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .. import __version__
from ..inputs_random_transformer import check_choice
from .sources import NOT_A_PAIR, NOT_UTF8, Corpus, InvalidLine, Line, ParallelLine

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

ON_INVALID = ("error", "skip")
MAX_SHOWN_LINES = 10  # line numbers in a report, for each reason
MAX_NOT_UTF8 = 0.2  # a file with a larger share of such lines has another encoding; only its ASCII texts would remain


@dataclass
class ValidationReport:
    """The invalid lines of a corpus.

    Attributes:
        name: name of the corpus.
        lines: number of lines, valid or not.
        counts: number of invalid lines by reason.
        first: numbers of the first invalid lines by reason.
    """

    name: str
    lines: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[int]] = field(default_factory=dict)

    def add(self, reason: str, number: int) -> None:
        """Count one more invalid line."""
        self.counts[reason] = self.counts.get(reason, 0) + 1
        numbers = self.first.setdefault(reason, [])
        if len(numbers) < MAX_SHOWN_LINES:
            numbers.append(number)

    def valid_lines(self, lines: Iterable[Line]) -> Iterator[ParallelLine]:
        """The valid lines. All lines are counted, and invalid lines are added to the report."""
        for line in lines:
            self.lines += 1
            if isinstance(line, InvalidLine):
                self.add(line.reason, line.number)
            else:
                yield line

    @property
    def invalid(self) -> int:
        """Number of invalid lines."""
        return sum(self.counts.values())

    @property
    def valid(self) -> int:
        """Number of valid lines."""
        return self.lines - self.invalid

    def check(self, on_invalid: str) -> None:
        """Apply `on_invalid` to a complete report.

        Raises:
            ValueError: there are invalid lines and `on_invalid` is `"error"`, no line is valid, or the text has another
                encoding.
        """
        if not self.valid:
            columns = ""
            if NOT_A_PAIR in self.counts:
                columns = " in two columns, or those of source_key and target_key, which may be numbers from 1"
            raise ValueError(f"there must be at least one valid pair of texts{columns}, got {self}.")
        self.check_encoding()
        if self.invalid and on_invalid == "error":
            raise ValueError(f"{self}. Correct these lines, or skip them with on_invalid='skip'.")

    def check_encoding(self) -> None:
        """Raise a `ValueError` if so many lines are not UTF-8 that the text has another encoding."""
        if self.counts.get(NOT_UTF8, 0) > MAX_NOT_UTF8 * self.lines:
            lines = ValidationReport.__str__(self)  # a subclass may be printed as a table
            raise ValueError(f"texts must be UTF-8, got {lines}. In a spreadsheet, save them as CSV UTF-8.")

    def __str__(self) -> str:
        if not self.invalid:
            return f"{self.name}: {self.lines:,} lines, none invalid"
        reasons = []
        for reason, count in self.counts.items():
            numbers = ", ".join(map(str, self.first[reason]))
            more = ", …" if count > MAX_SHOWN_LINES else ""
            reasons.append(f"{count:,} {reason} (line {numbers}{more})")
        return f"{self.name}: {self.invalid:,} of {self.lines:,} lines are invalid: {'; '.join(reasons)}"


def read_valid(corpus: Corpus) -> list[ParallelLine]:
    """Read a corpus once into memory, without its invalid lines, which a warning counts.

    Raises:
        ValueError: a file cannot be read, no line is valid, or the text has another encoding.
    """
    report = ValidationReport(str(corpus))
    lines = list(report.valid_lines(corpus.lines()))
    report.check("skip")
    if report.invalid:
        logger.warning("%s", report)
    return lines


def validate(corpus: Corpus, on_invalid: str | None = None) -> ValidationReport:
    """Read a corpus once and report its invalid lines.

    Raises:
        ValueError: a file cannot be read, see `Corpus.lines`; or `ValidationReport.check`, if `on_invalid` is
            given.
    """
    report = ValidationReport(str(corpus))
    deque(report.valid_lines(corpus.lines()), maxlen=0)
    if on_invalid is not None:
        report.check(on_invalid)
    return report


def load_pairs(
    corpus: Corpus, on_invalid: str = "error", cache_dir: str | Path | None = None
) -> "tuple[Dataset, ValidationReport]":
    """Read a corpus once, into a memory-mapped dataset with the columns `line`, `source` and `target`.

    Memory does not grow with the corpus. The cache key contains a digest of the files, so they are read to compute it.
    With several processes, one process reads the corpus. The other processes wait for its lock on the cache, without a
    timeout, and map the file that it wrote.

    Args:
        corpus: the parallel text.
        on_invalid: `"error"` to raise an error if there are invalid lines, `"skip"` to skip them.
        cache_dir: folder of the Arrow file; the cache of `datasets` when `None`.

    Raises:
        ValueError: `on_invalid` is invalid, a file cannot be read, there are invalid lines and `on_invalid` is
            `"error"`, or no line is valid.
    """
    import pyarrow.compute as pc  # slow to import, like datasets
    from datasets import Dataset, Features, Value
    from datasets.exceptions import DatasetGenerationError

    check_choice(ON_INVALID, on_invalid=on_invalid)
    report = ValidationReport(str(corpus))
    if next(corpus.lines(), None) is None:  # the error of `datasets` does not name the corpus
        report.check(on_invalid)
    text = Value("string")
    try:
        rows = Dataset.from_generator(
            validated_rows,
            features=Features({"line": Value("int64"), "source": text, "target": text, "invalid": text}),
            cache_dir=cache_dir,
            # All arguments are the key of the cache. Another version may read the same files differently.
            gen_kwargs={"corpus": replace(corpus, weight=1), "version": f"{__version__} {corpus.fingerprint()}"},
        )
    except DatasetGenerationError as error:
        raise error.__cause__ or error from None  # the error of the reader
    is_invalid = pc.not_equal(rows.data.column("invalid"), "").to_numpy()
    report.lines = len(rows)
    for row in rows.select(np.flatnonzero(is_invalid)):
        report.add(row["invalid"], row["line"])
    report.check(on_invalid)
    pairs = rows.remove_columns("invalid")
    return pairs.select(np.flatnonzero(~is_invalid)) if report.invalid else pairs, report


def validated_rows(corpus: Corpus, version: str) -> Iterator[dict[str, Any]]:  # noqa: ARG001 (cache key)
    for line in corpus.lines():
        reason = line.reason if isinstance(line, InvalidLine) else ""
        yield {"line": line.number, "source": line.source, "target": line.target, "invalid": reason}
