"""Cleaning of a stream of pairs."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from .cleaning_report import CleaningReport
from .duplicates import HashSet
from .filters import DUPLICATE, CleaningOptions, cheap_filters, language_filters
from .scripts import SAMPLE_LINES, SAMPLE_PAIRS, scripts_of
from .sources import UNALIGNED, Corpus, DatasetText, InvalidLine, Line, ParallelLine, ParallelText, parse_pair

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
    normalize: Callable[[str], str] | None = None,
    **options: Any,
) -> Iterator[ParallelLine]:
    """Filter pairs, in order and in a single pass.

    A line is dropped by the first filter that applies: invalid lines, copies, length, script, language, duplicates.
    Only kept pairs count as earlier pairs of a duplicate.
    Memory: 8 bytes per pair for duplicates, and the sample that determines the scripts, at most 100,000 pairs.

    Args:
        pairs: parallel text, or an iterable of sources and targets.
        report: a report that is filled while the pairs are read.
        on_rejected: called with each dropped line, in order.
        normalize: applied to each text before the filters.
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
    return _clean(_lines_of(pairs, normalize), settings, identify, report, on_rejected or (lambda _: None))


def _clean(
    lines: Iterator[Line],
    options: CleaningOptions,
    identify: list[Any],
    report: CleaningReport,
    on_rejected: Callable[[RejectedLine], Any],
) -> Iterator[ParallelLine]:
    read: list[Line] = []
    if options.min_script_share is not None:
        report.scripts = _scripts(options, identify, lines, read)
    for line, reason in _filtered(chain(read, lines), options, report.scripts, identify):
        report.add(line, reason)
        if reason is not None:
            on_rejected(RejectedLine(line, reason))
        elif isinstance(line, ParallelLine):
            yield line


def _filtered(
    lines: Iterable[Line], options: CleaningOptions, scripts: dict[str, list[str]], identify: list[Any]
) -> Iterator[tuple[Line, str | None]]:
    """The lines, and the reason to drop each."""
    checks, seen = [*cheap_filters(options, scripts), *identify], HashSet()
    iterator = iter(lines)
    while chunk := list(islice(iterator, CHUNK_LINES)):
        reasons = [_first_reason(line, checks) for line in chunk]
        if options.duplicates != "off":
            _mark_duplicates(chunk, reasons, seen, options.duplicates)
        yield from zip(chunk, reasons, strict=True)


def _lines_of(pairs: Corpus | Iterable[tuple[str, str]], normalize: Callable[[str], str] | None) -> Iterator[Line]:
    if isinstance(pairs, ParallelText | DatasetText):
        lines = _aligned(pairs)
    else:
        lines = (parse_pair(number, *pair) for number, pair in enumerate(pairs, start=1))
    if normalize is None:
        return lines
    return (
        parse_pair(line.number, normalize(line.source), normalize(line.target))
        if isinstance(line, ParallelLine)
        else line
        for line in lines
    )


def _aligned(corpus: Corpus) -> Iterator[Line]:
    for line in corpus.lines():
        if isinstance(line, InvalidLine) and line.reason == UNALIGNED:
            raise ValueError(
                f"{corpus} must have the same number of lines, got one that ends before line {line.number}."
            )
        yield line


def _scripts(
    options: CleaningOptions, identify: list[Any], lines: Iterator[Line], read: list[Line]
) -> dict[str, list[str]]:
    """The scripts of both sides: those of the options, or those of the first pairs that remain.

    Which pairs remain depends on the scripts, of which those are removed that are rare in these pairs, until none is.
    Cleaning the remaining pairs again thus finds at least these scripts, and drops nothing.

    Args:
        options: the options.
        identify: the filters of languages.
        lines: all lines.
        read: the lines that this function reads are appended.
    """
    given = {"source": options.source_script, "target": options.target_script}
    scripts = {side: list(names or ()) for side, names in given.items()}
    while options.samples_scripts():
        filtered = _filtered(_recorded(lines, read), options, scripts, identify)
        sample = [*islice((line for line, reason in filtered if reason is None), SAMPLE_PAIRS)]
        earlier, scripts = scripts, dict(scripts)
        for side in (side for side, names in given.items() if names is None):
            found = scripts_of(getattr(line, side) for line in sample)
            scripts[side] = [name for name in scripts[side] if name in found] or scripts[side] or found
        if scripts == earlier:
            break
    return scripts


def _recorded(lines: Iterator[Line], read: list[Line]) -> Iterator[Line]:
    """The lines in `read` and the following ones, which are appended to it; `SAMPLE_LINES` at most."""
    yield from read
    for line in islice(lines, SAMPLE_LINES - len(read)):
        read.append(line)
        yield line


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
    # The length of the source makes the end of the source unambiguous for texts with any characters.
    return f"{len(line.source)} {line.source}{line.target}" if compared == "pair" else getattr(line, compared)
