"""Cleaning of a stream of pairs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from ..data.sources import UNALIGNED, Corpus, DatasetText, InvalidLine, Line, ParallelLine, ParallelText, parse_pair
from .duplicates import HashSet
from .filters import DUPLICATE, CleaningOptions, cheap_filters, language_filters
from .report import CleaningReport
from .scripts import SAMPLE_PAIRS, scripts_of

CHUNK_LINES = 10_000  # compared with earlier pairs together


@dataclass(slots=True)
class RejectedLine:
    """A dropped line and the reason."""

    line: Line
    reason: str


def clean_pairs(
    pairs: Corpus | Iterable[tuple[str, str]],
    *,
    report: CleaningReport | None = None,
    on_rejected: Callable[[RejectedLine], Any] | None = None,
    **options: Any,
) -> Iterator[ParallelLine]:
    """Filter pairs, in order and in a single pass.

    A line is dropped by the first filter that applies: invalid lines, copies, length, script, language, duplicates.
    Only kept pairs count as earlier pairs of a duplicate.
    Memory: 8 bytes per pair for duplicates, and 10,000 pairs.

    Args:
        pairs: parallel text, or an iterable of sources and targets.
        report: a report that is filled while the pairs are read.
        on_rejected: called with each dropped line, in order.
        **options: the fields of `CleaningOptions`.

    Yields:
        The remaining pairs and their line numbers.

    Raises:
        ValueError: an option is invalid, py3langid is required but not installed, or, while reading, the two files of
            the corpus have different numbers of lines.
    """
    settings = CleaningOptions(**options)
    identify = language_filters(settings)
    report = CleaningReport("pairs") if report is None else report
    return _clean(pairs, settings, identify, report, on_rejected or (lambda _: None))


def _clean(
    pairs: Corpus | Iterable[tuple[str, str]],
    options: CleaningOptions,
    identify: list[Any],
    report: CleaningReport,
    on_rejected: Callable[[RejectedLine], Any],
) -> Iterator[ParallelLine]:
    lines = _lines_of(pairs)
    if options.samples_scripts():
        sample = list(islice(lines, SAMPLE_PAIRS))
        lines = chain(sample, lines)
        report.scripts = _scripts(options, [line for line in sample if isinstance(line, ParallelLine)])
    elif options.min_script_share is not None:
        report.scripts = _scripts(options, [])
    checks, seen = [*cheap_filters(options, report.scripts), *identify], HashSet()
    while chunk := list(islice(lines, CHUNK_LINES)):
        reasons = [_first_reason(line, checks) for line in chunk]
        if options.duplicates != "off":
            _mark_duplicates(chunk, reasons, seen, options.duplicates)
        for line, reason in zip(chunk, reasons, strict=True):
            report.add(line, reason)
            if reason is not None:
                on_rejected(RejectedLine(line, reason))
            elif isinstance(line, ParallelLine):
                yield line


def _lines_of(pairs: Corpus | Iterable[tuple[str, str]]) -> Iterator[Line]:
    if not isinstance(pairs, ParallelText | DatasetText):
        return (parse_pair(number, *pair) for number, pair in enumerate(pairs, start=1))
    return _aligned(pairs)


def _aligned(corpus: Corpus) -> Iterator[Line]:
    for line in corpus.lines():
        if isinstance(line, InvalidLine) and line.reason == UNALIGNED:
            raise ValueError(
                f"{corpus} must have the same number of lines, got one that ends before line {line.number}."
            )
        yield line


def _scripts(options: CleaningOptions, sample: list[ParallelLine]) -> dict[str, list[str]]:
    """The scripts of both sides: those of the options, or those of the sample."""
    sides = {"source": options.source_script, "target": options.target_script}
    return {
        side: scripts_of(getattr(line, side) for line in sample) if names is None else list(names)
        for side, names in sides.items()
    }


def _first_reason(line: Line, checks: list[Any]) -> str | None:
    if isinstance(line, InvalidLine):
        return line.reason
    for check in checks:
        reason = check(line.source, line.target)
        if reason is not None:
            return reason
    return None


def _mark_duplicates(lines: list[Line], reasons: list[str | None], seen: HashSet, compared: str) -> None:
    """Set the reason of each duplicate among the lines that no filter has dropped."""
    candidates = {
        index: line
        for index, (line, reason) in enumerate(zip(lines, reasons, strict=True))
        if reason is None and isinstance(line, ParallelLine)
    }
    texts = (_compared_text(line, compared) for line in candidates.values())
    for index, is_new in zip(candidates, seen.add(texts).tolist(), strict=True):
        if not is_new:
            reasons[index] = DUPLICATE


def _compared_text(line: ParallelLine, compared: str) -> str:
    return f"{line.source}\0{line.target}" if compared == "pair" else getattr(line, compared)
