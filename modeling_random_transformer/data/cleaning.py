"""Cleaning of parallel text: of a stream of pairs, and of files."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import chain, islice
from os import PathLike
from pathlib import Path
from typing import IO, Any

from ..base import progress_bar
from ..base.compressed_files import STANDARD_STREAM, check_output, create_binaries, file_format, is_stream
from ..base.errors import printable
from ..base.text import one_line
from ..inputs_random_transformer import drop_none
from .filters import CleaningOptions, filters_of, scripts_of
from .normalization import normalized
from .readers import quoted
from .sources import Corpus, InvalidLine, Line, ParallelLine, parse_pair
from .splitting import HELD_OUT, SETS, Split, name_of_set
from .validation import ValidationReport

EXAMPLES = 3  # for each reason
SHOWN_CHARACTERS = 40  # of each text of the example in a table
SAMPLE_PAIRS = 10_000  # that determine the scripts
SAMPLE_LINES = 100_000  # the most lines to find these pairs in


@dataclass
class CleaningReport(ValidationReport):
    """The pairs that were kept (`valid`), and those that were dropped by reason (`counts`).

    Args:
        examples: the first dropped pairs by reason, with `line`, `source` and `target`; see `InvalidLine`.
        scripts: the scripts that were accepted, for source and target.
        sets: number of pairs of each set of `clean_files(split=...)`.
        normalized: number of pairs with each kind of change of the normalization. `examples` has the first of them too.
    """

    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    scripts: dict[str, list[str]] = field(default_factory=dict)
    sets: dict[str, int] = field(default_factory=dict)
    normalized: dict[str, int] = field(default_factory=dict)

    def drop(self, line: Line, reason: str) -> None:
        """Count a line that is dropped."""
        self.add(reason, line.number)
        self.show(line, reason, self.counts)

    def normalize(self, line: ParallelLine) -> Line:
        """A line with normalized texts; counts the kinds of changes."""
        (source, first), (target, second) = normalized(line.source), normalized(line.target)
        for kind in dict.fromkeys((*first, *second)):
            self.normalized[kind] = self.normalized.get(kind, 0) + 1
            self.show(line, kind, self.normalized)
        return parse_pair(line.number, source, target) if first or second else line

    def show(self, line: Line, kind: str, counts: dict[str, int]) -> None:
        """Keep a line as an example, if it is one of the first."""
        if counts[kind] <= EXAMPLES:
            example = {"line": line.number, "source": line.source, "target": line.target}
            self.examples.setdefault(kind, []).append(example)

    def __str__(self) -> str:
        """A table with a line for each reason."""
        lines = max(1, self.lines)
        rows = [f"{self.name}: kept {self.valid:,} of {self.lines:,} pairs ({self.valid / lines:.2%})"]
        if self.sets:
            rows.append("  " + ", ".join(f"{name} {size:,}" for name, size in self.sets.items()))
        for reason, count in sorted((self.counts | self.normalized).items(), key=lambda item: -item[1]):
            example = self.examples[reason][0]
            texts = " ||| ".join(printable(text, SHOWN_CHARACTERS) for text in (example["source"], example["target"]))
            rows.append(f"  {reason:46} {count:>11,}  {count / lines:>7.2%}  line {example['line']}: {texts}")
        return "\n".join(rows)


def clean_pairs(
    pairs: Corpus | Iterable[tuple[str, str]],
    *,
    report: CleaningReport | None = None,
    on_rejected: Callable[[Line, str], Any] = lambda *_: None,
    **options: Any,
) -> Iterator[ParallelLine]:
    """Filter pairs, in order and in a single pass.

    The filters are applied to normalized texts without line breaks and tabs, which become spaces.
    A line is dropped by the first filter that applies: invalid lines, copies, length, script, language, duplicates.
    Only kept pairs count as earlier pairs of a duplicate.
    Memory: about 100 bytes per pair for duplicates, and the first 100,000 pairs, which determine the scripts.

    Args:
        pairs: parallel text, or an iterable of sources and targets.
        report: a report that is filled while the pairs are read.
        on_rejected: called with each dropped line and the reason, in order.
        **options: the fields of `CleaningOptions`.

    Yields:
        The remaining pairs and their line numbers.

    Raises:
        ValueError: with the first pair, if an option is invalid, or py3langid is required but not installed; or a file
            cannot be read, see `ParallelText.lines`.
    """
    report = CleaningReport("pairs") if report is None else report
    yield from _cleaned(pairs, CleaningOptions(**options), report, on_rejected)


def _cleaned(
    pairs: Corpus | Iterable[tuple[str, str]],
    settings: CleaningOptions,
    report: CleaningReport,
    on_rejected: Callable[[Line, str], Any] = lambda *_: None,
) -> Iterator[ParallelLine]:
    """See `clean_pairs`. Passes with the same options object read the excluded files once."""
    lines, sample = _lines_of(pairs), list[Line]()
    if settings.normalization != "off":
        lines = (report.normalize(line) if isinstance(line, ParallelLine) else line for line in lines)
    if settings.min_script_share is not None:
        sample = [*islice(lines, SAMPLE_LINES)]
        report.scripts = _scripts(settings, sample)
    for line, reason in _filtered(chain(sample, lines), settings, report.scripts):
        report.lines += 1
        if reason is not None:
            report.drop(line, reason)
            on_rejected(line, reason)
        elif isinstance(line, ParallelLine):
            yield line


def _lines_of(pairs: Corpus | Iterable[tuple[str, str]]) -> Iterator[Line]:
    """The lines with texts as they are written."""
    if isinstance(pairs, Corpus):
        lines = pairs.lines()
    else:
        lines = (parse_pair(number, *pair) for number, pair in enumerate(pairs, start=1))
    for line in lines:
        if isinstance(line, ParallelLine):
            line = parse_pair(line.number, _normalized(line.source), _normalized(line.target))
        yield line


def _filtered(
    lines: Iterable[Line], options: CleaningOptions, scripts: dict[str, list[str]]
) -> Iterator[tuple[Line, str | None]]:
    """The lines, and the reason to drop each."""
    filters = [*filters_of(options, scripts)]
    for line in lines:
        if isinstance(line, InvalidLine):
            yield line, line.reason
        else:
            yield line, next(filter(None, (check(line.source, line.target) for check in filters)), None)


def _scripts(options: CleaningOptions, lines: Sequence[Line]) -> dict[str, list[str]]:
    """The scripts of both sides: those of the options, or those of the first pairs that remain of these lines.

    Which pairs remain depends on the scripts, of which those are removed that are rare in these pairs, until none is.
    Cleaning the remaining pairs again thus finds at least these scripts, and drops nothing.
    """
    given = {"source": options.source_script, "target": options.target_script}
    scripts, earlier = {side: list(names or ()) for side, names in given.items()}, None
    while None in given.values() and scripts != earlier:
        remaining = (line for line, reason in _filtered(lines, options, scripts) if reason is None)
        sample = [*islice(remaining, SAMPLE_PAIRS)]
        earlier, scripts = scripts, dict(scripts)
        for side in (side for side, names in given.items() if names is None):
            found = scripts_of(getattr(line, side) for line in sample)
            scripts[side] = [name for name in scripts[side] if name in found] or scripts[side] or found
    return scripts


def clean_files(
    corpus: Corpus,
    output: str | PathLike,
    output_target: str | PathLike | None = None,
    *,
    rejected_file: str | PathLike | None = None,
    report_file: str | PathLike | None = None,
    split: Sequence[int] = (),
    **options: Any,
) -> CleaningReport:
    """Write the pairs that pass the filters.

    Files are compressed if their names say so. All files are replaced when all of them are complete. One
    of them may be `-`, standard output. The filters are applied to the texts as they are written: normalized, without
    byte order marks at the start and line breaks at the end, and with spaces for other line breaks and tabs.
    Cleaning an output again with the same options drops nothing.

    Args:
        corpus: the parallel text.
        output: a `.tsv` or `.jsonl` file for both sides, `-` for TSV; with `output_target`, a text file for the
            sources.
        output_target: a text file for the targets.
        rejected_file: a TSV file for the dropped lines: reason, line number, source and target; the beginnings of the
            texts of an invalid line.
        report_file: a JSON file for the report.
        split: numbers of pairs of a validation set and, optionally, of a test set, see `Split`. They are written beside
            the outputs, such as `clean.validation.tsv` and `clean.test.tsv` beside `clean.tsv`. Other pairs with one of
            their sources or targets are dropped. The corpus is read several times, so it must not be standard input.
        **options: the fields of `CleaningOptions`.

    Raises:
        ValueError: an option is invalid, an output cannot be written or is one of the inputs, several outputs are
            standard output, the files of the corpus have different numbers of lines or are damaged, or no pair is
            kept.
        OSError: a file cannot be read or written.
    """
    outputs = _outputs(drop_none(output=output, output_target=output_target), SETS[: len(split)])
    paths = drop_none(rejected_file=rejected_file, report_file=report_file)
    for files_of_set in outputs.values():
        paths |= files_of_set
    settings = CleaningOptions(**options)
    _check_outputs(corpus, paths, settings.exclude or ())
    chosen = _choose(corpus, split, settings) if split else None
    report = CleaningReport(str(corpus), sets=dict.fromkeys(outputs if split else (), 0))
    with create_binaries([*paths.values()]) as opened, progress_bar(unit="pair") as bar:
        files = dict(zip(paths, opened, strict=True))
        reject = partial(_write_rejected, files.get("rejected_file"))
        pairs = _cleaned(corpus, settings, report, reject)
        for name, pair in _with_sets(pairs, chosen, report, reject):
            bar.update()
            for key, row in zip(outputs[name], _rows(pair, output, output_target), strict=True):
                files[key].write(f"{row}\n".encode())
        _check_kept(report)  # before the outputs replace earlier files
        if report_file is not None:
            content = asdict(report) | {"kept": report.valid, "options": asdict(settings)}
            files["report_file"].write(json.dumps(content, indent=2, ensure_ascii=False).encode() + b"\n")
    return report


def _outputs(texts: dict[str, str | PathLike], sets: Iterable[str]) -> dict[str, dict[str, str | PathLike]]:
    """The files of each set, by the names that errors have: those of the training set, and those beside them.

    Raises:
        ValueError: the names do not have the suffix of a format, or there are no files beside standard output.
    """
    is_stdout = "output_target" not in texts and is_stream(texts["output"])
    allowed = {"text"} if "output_target" in texts else {"tsv", "jsonl"}
    if not is_stdout and not {*map(file_format, texts.values())} <= allowed:
        expected = "a .tsv or .jsonl file, or output and output_target text files"
        raise ValueError(f"output must be {expected}, got {' and '.join(map(str, texts.values()))}.")
    outputs = {"train": texts}
    for name in sets:
        if is_stdout:
            raise ValueError(f"output must be a file with split, got {STANDARD_STREAM}.")
        outputs[name] = {f"{key} of {name}": name_of_set(Path(path), name) for key, path in texts.items()}
    return outputs


def _check_kept(report: CleaningReport) -> None:
    """Raise a `ValueError` for a training set without pairs."""
    if not report.sets.get("train", report.valid):
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.counts.items())
        raise ValueError(f"{report.name} must have a pair to keep, got {report.lines:,} pairs: {reasons or 'none'}.")


def _check_outputs(corpus: Corpus, paths: dict[str, str | PathLike], excluded: Sequence[str]) -> None:
    """Raise a `ValueError` for outputs that cannot be written, or that overwrite a file that is read or each other."""
    inputs = corpus.files | {f"exclude {number}": Path(path) for number, path in enumerate(excluded, start=1)}
    for name, path in paths.items():
        check_output(name, path, **inputs)
    if len({Path(path).resolve() for path in paths.values()}) < len(paths):
        raise ValueError(f"outputs must differ from each other, got {', '.join(map(str, paths.values()))}.")


def _with_sets(
    pairs: Iterable[ParallelLine], chosen: Split | None, report: CleaningReport, reject: Callable[[Line, str], None]
) -> Iterator[tuple[str, ParallelLine]]:
    """Each pair with the name of its set; pairs that share a text with a chosen one are dropped."""
    for pair in pairs:
        name = "train" if chosen is None else chosen.set_of(pair)
        if name is None:
            report.drop(pair, HELD_OUT)
            reject(pair, HELD_OUT)
            continue
        if chosen is not None:
            report.sets[name] += 1
        yield name, pair


def _choose(corpus: Corpus, split: Sequence[int], settings: CleaningOptions) -> Split:
    """The validation and test sets, in a pass over the corpus."""
    if len(split) > len(SETS) or min(split) < 1:
        raise ValueError(f"split must be one or two positive numbers, got {', '.join(map(str, split))}.")
    corpus.require_files()
    return Split(lambda: _cleaned(corpus, settings, CleaningReport(str(corpus))), split)


def _normalized(text: str) -> str:
    """A text as one line and one cell of a TSV file, without byte order marks at the start, which readers remove."""
    return one_line(text.lstrip("\ufeff").rstrip("\r\n")).replace("\t", " ")


def _row(*texts: str) -> str:
    """A line of a TSV file."""
    return "\t".join(quoted(_normalized(text)) for text in texts)


def _write_rejected(file: IO[bytes] | None, line: Line, reason: str) -> None:
    """Write a dropped line to the file for them, if there is one."""
    if file is not None:
        file.write(f"{_row(reason, str(line.number), line.source, line.target)}\n".encode())


def _rows(pair: ParallelLine, output: str | PathLike, output_target: str | PathLike | None) -> list[str]:
    """A pair as lines of the output files."""
    if output_target is not None:
        return [pair.source, pair.target]
    if file_format(output) == "jsonl":
        return [json.dumps({"source": pair.source, "target": pair.target}, ensure_ascii=False)]
    return [_row(pair.source, pair.target)]
