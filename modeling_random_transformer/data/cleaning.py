"""Cleaning of parallel text: of a stream of pairs, and of files."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import Any

from transformers.utils.logging import tqdm

from ..inputs_random_transformer import chunks
from ..utils.compressed_files import create_binaries, file_format, is_standard_stream
from ..utils.text import one_line
from .filters import DUPLICATE, CleaningOptions, HashSet, cheap_filters, language_filters, scripts_of
from .readers import quoted
from .sources import UNALIGNED, Corpus, DatasetText, InvalidLine, Line, ParallelLine, ParallelText, parse_pair
from .validation import ValidationReport

EXAMPLES = 3  # for each reason
SHOWN_CHARACTERS = 40  # of each text of the example in a table
CONTROL_CHARACTERS = dict.fromkeys(range(32), " ")
CHUNK_LINES = 10_000  # compared with earlier pairs together
SAMPLE_PAIRS = 10_000  # that determine the scripts
SAMPLE_LINES = 100_000  # the most lines to find these pairs in


@dataclass
class CleaningReport(ValidationReport):
    """The pairs that were kept (`valid`), and those that were dropped by reason (`counts`).

    Args:
        examples: the first dropped pairs by reason, with `line`, `source` and `target`; see `InvalidLine`.
        scripts: the scripts that were accepted, for source and target.
    """

    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    scripts: dict[str, list[str]] = field(default_factory=dict)

    def count(self, line: Line, reason: str | None) -> None:
        """Count a line, which is dropped if there is a reason."""
        self.lines += 1
        if reason is None:
            return
        self.add(reason, line.number)
        examples = self.examples.setdefault(reason, [])
        if len(examples) < EXAMPLES:
            examples.append({"line": line.number, "source": line.source, "target": line.target})

    def __str__(self) -> str:
        """A table with a line for each reason."""
        title = f"{self.name}: kept {self.valid:,} of {self.lines:,} pairs ({self._percent(self.valid)})"
        width = max(map(len, self.counts), default=0)
        rows = [
            f"  {reason:{width}}  {count:>11,}  {self._percent(count):>7}  {_shown(self.examples[reason][0])}"
            for reason, count in sorted(self.counts.items(), key=lambda item: -item[1])
        ]
        return "\n".join([title, *rows])

    def _percent(self, count: int) -> str:
        return f"{count / max(1, self.lines):.2%}"


def _shown(example: dict[str, Any]) -> str:
    texts = (text.translate(CONTROL_CHARACTERS) for text in (example["source"], example["target"]) if text)
    shown = [f"{text[:SHOWN_CHARACTERS]}…" if len(text) > SHOWN_CHARACTERS else text for text in texts]
    return f"line {example['line']}" + (f": {' ||| '.join(shown)}" if shown else "")


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
        report.count(line, reason)
        if reason is not None:
            on_rejected(RejectedLine(line, reason))
        elif isinstance(line, ParallelLine):
            yield line


def _filtered(
    lines: Iterable[Line], options: CleaningOptions, scripts: dict[str, list[str]], identify: list[Any]
) -> Iterator[tuple[Line, str | None]]:
    """The lines, and the reason to drop each."""
    checks, seen = [*cheap_filters(options, scripts), *identify], HashSet()
    for chunk in chunks(lines, CHUNK_LINES):
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


def clean_files(
    corpus: Corpus,
    output: str | PathLike,
    output_target: str | PathLike | None = None,
    *,
    rejected_file: str | PathLike | None = None,
    report_file: str | PathLike | None = None,
    progress: bool | None = None,
    **options: Any,
) -> CleaningReport:
    """Write the pairs that pass the filters.

    Files whose names end with `.gz` or `.zst` are compressed. All files are replaced when all of them are complete. One
    of them may be `-`, standard output. The filters are applied to the texts as they are written: byte order marks at
    the start and line breaks at the end are removed, and within a text, line breaks become spaces in text and TSV
    files, and tabs in TSV files. Cleaning an output again with the same options drops nothing.

    Args:
        corpus: the parallel text.
        output: a `.tsv` or `.jsonl` file for both sides, `-` for TSV; with `output_target`, a text file for the
            sources.
        output_target: a text file for the targets.
        rejected_file: a TSV file for the dropped lines: reason, line number, source and target; the beginnings of the
            texts of an invalid line.
        report_file: a JSON file for the report.
        progress: show a progress bar on stderr; `None` shows it after some seconds.
        **options: the fields of `CleaningOptions`.

    Raises:
        ValueError: an option is invalid, an output cannot be written or is one of the inputs, several outputs are
            standard output, the files of the corpus have different numbers of lines or are damaged, or no pair is
            kept.
        OSError: a file cannot be read or written.
    """
    outputs = [Path(path) for path in (output, output_target) if path is not None]
    _check_formats(outputs)
    names = ("output", "output_target", "rejected_file", "report_file")
    given = zip(names, (output, output_target, rejected_file, report_file), strict=True)
    paths = {name: Path(path) for name, path in given if path is not None}
    _check_paths(corpus, paths)
    report = CleaningReport(str(corpus))
    with create_binaries([*paths.values()]) as opened:
        files = dict(zip(paths, opened, strict=True))
        normalize, written = _format(outputs)

        def write_rejected(rejected: RejectedLine) -> None:
            line = rejected.line
            if "rejected_file" in files:
                row = _row(rejected.reason, str(line.number), line.source, line.target)
                files["rejected_file"].write(f"{row}\n".encode())

        pairs = clean_pairs(corpus, report=report, on_rejected=write_rejected, normalize=normalize, **options)
        for pair in _with_progress(pairs, report, progress):
            for file, text in zip(opened, written(pair), strict=False):
                file.write(f"{text}\n".encode())
        if not report.valid:  # before the outputs replace earlier files
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.counts.items())
            raise ValueError(f"{corpus} must have a pair to keep, got {report.lines:,} pairs: {reasons or 'none'}.")
        if report_file is not None:
            content = asdict(report) | {"kept": report.valid, "options": asdict(CleaningOptions(**options))}
            files["report_file"].write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
    return report


def _check_formats(outputs: list[Path]) -> None:
    formats = [file_format(path) for path in outputs]
    if len(outputs) == 2 and formats != ["text", "text"]:
        raise ValueError(f"output and output_target must be text files, got {outputs[0]} and {outputs[1]}.")
    if len(outputs) == 1 and not is_standard_stream(outputs[0]) and formats[0] not in ("tsv", "jsonl"):
        raise ValueError(f"output must be a .tsv or .jsonl file without output_target, got {outputs[0]}.")


def _check_paths(corpus: Corpus, outputs: dict[str, Path]) -> None:
    """Check that outputs are distinct files in folders that exist, and differ from the inputs.

    Args:
        corpus: the inputs.
        outputs: the path of each output by the name of its argument.
    """
    standard = [name for name, path in outputs.items() if is_standard_stream(path)]
    if len(standard) > 1:
        raise ValueError(f"only one output may be standard output ('-'), got {' and '.join(standard)}.")
    inputs = [corpus.source, corpus.target] if isinstance(corpus, ParallelText) else []
    used = {Path(path).resolve() for path in inputs if path is not None and not is_standard_stream(path)}
    for path in outputs.values():
        if is_standard_stream(path):
            continue
        if not path.absolute().parent.is_dir() or path.is_dir():
            raise ValueError(f"outputs must be files in folders that exist, got {path}.")
        if path.resolve() in used:
            raise ValueError(f"outputs must differ from each other and from the inputs, got {path} twice.")
        used.add(path.resolve())


def _format(outputs: list[Path]) -> tuple[Callable[[str], str], Callable[[ParallelLine], list[str]]]:
    """How texts are normalized, so that they are read as they are written, and the lines of a pair in the outputs."""
    if len(outputs) == 2:
        return lambda text: one_line(_text(text)), lambda line: [line.source, line.target]
    if file_format(outputs[0]) == "jsonl":
        return _text, lambda line: [json.dumps({"source": line.source, "target": line.target}, ensure_ascii=False)]
    return _cell, lambda line: [_row(line.source, line.target)]


def _text(text: str) -> str:
    """A text without what readers remove: byte order marks at the start, and line breaks at the end."""
    return text.lstrip("\ufeff").rstrip("\r\n")


def _row(*texts: str) -> str:
    """A line of a TSV file."""
    return "\t".join(quoted(_cell(text)) for text in texts)


def _cell(text: str) -> str:
    """A text as a cell of a TSV file."""
    return one_line(_text(text)).replace("\t", " ")


def _with_progress(pairs: Iterator[ParallelLine], report: CleaningReport, shown: bool | None) -> Iterator[ParallelLine]:
    """Show the number of pairs that were read."""
    with tqdm(unit="pair", desc="cleaning", disable=shown is False, delay=0 if shown else 5, mininterval=1) as bar:
        for index, line in enumerate(pairs):
            if index % 1000 == 0:
                bar.update(report.lines - bar.n)
            yield line
        bar.update(report.lines - bar.n)
