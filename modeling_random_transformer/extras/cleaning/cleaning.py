"""Cleans parallel text, as a stream of pairs or in files."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import IO, Any

from ...base.compressed_files import create_binaries
from ...base.errors import format_value, printable
from ...base.files import StrPath, one_line
from ...base.formats import file_format
from ...base.progress import progress_bar
from ...base.streams import check_output, is_stream
from ...data.readers import quoted
from ...data.sources import SIDES, Corpus, InvalidLine, Line, Pair, ParallelLine, is_pair, parse_pair
from ...data.validation import ValidationReport
from ...data.words import scripts_of
from ...inputs_random_transformer import drop_none
from .filters import CleaningOptions, Scripts, filters_of
from .normalization import normalized
from .splitting import HELD_OUT_SETS, SHARES_HELD_OUT_TEXT, Split, name_of_set
from .traits import traits

EXAMPLES = 3  # examples per reason
SHOWN_CHARACTERS = 40  # per text of an example in a table
SAMPLE_PAIRS = 10_000  # the scripts are determined from this many pairs
SAMPLE_LINES = 100_000  # the most lines to find these pairs in
INSPECTED_PAIRS = 100_000  # the most pairs whose traits are counted

Pairs = Corpus | Iterable[Pair]
OnRejected = Callable[[Line, str], Any]  # called with a dropped line and the reason


@dataclass
class CleaningReport(ValidationReport):
    """The numbers of pairs that were kept (`valid`) and dropped, by reason (`counts`).

    Args:
        examples: the first dropped pairs by reason, with `line`, `source` and `target`; see `InvalidLine`.
        scripts: the scripts that were accepted, for source and target.
        sets: number of pairs of each set of `clean_files(split=...)`.
        normalized: number of pairs with each kind of change of the normalization. `examples` has the first of them too.
        inspected: number of kept pairs that `clean_files` inspects: the first `INSPECTED_PAIRS`.
        traits: number of these pairs with each trait, see `traits`. `examples` has the first of them too.
    """

    examples: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    scripts: Scripts = field(default_factory=dict)
    sets: dict[str, int] = field(default_factory=dict)
    normalized: dict[str, int] = field(default_factory=dict)
    inspected: int = 0
    traits: dict[str, int] = field(default_factory=dict)

    def drop(self, line: Line, reason: str) -> None:
        """Count a line that is dropped."""
        self.add(reason, line.number)
        self.show(line, reason)

    def normalize(self, line: ParallelLine) -> ParallelLine:
        """A line with normalized texts; counts the kinds of changes."""
        source, source_changes = normalized(line.source)
        target, target_changes = normalized(line.target)
        changes = {*source_changes, *target_changes}
        self.count(line, changes, self.normalized)
        return ParallelLine(line.number, source, target) if changes else line

    def inspect(self, pairs: Sequence[ParallelLine]) -> None:
        """Count the traits of kept pairs."""
        self.inspected = len(pairs)
        for pair, trait in traits(pairs):
            self.count(pair, [trait], self.traits)

    def count(self, line: Line, kinds: Iterable[str], counts: dict[str, int]) -> None:
        """Count a line that is kept."""
        for kind in kinds:
            counts[kind] = counts.get(kind, 0) + 1
            self.show(line, kind)

    def show(self, line: Line, kind: str) -> None:
        """Keep a line as an example, if it is one of the first."""
        examples = self.examples.setdefault(kind, [])
        if len(examples) < EXAMPLES:
            examples.append({"line": line.number, "source": line.source, "target": line.target})

    def __str__(self) -> str:
        """A table with a line for each reason, and one for each trait of the kept pairs."""
        total = max(1, self.lines)
        rows = [f"{self.name}: kept {self.valid:,} of {self.lines:,} pairs ({self.valid / total:.2%})"]
        if len(self.sets) > 1:
            rows.append("  " + ", ".join(f"{name} {size:,}" for name, size in self.sets.items()))
        rows += self._rows(self.counts | self.normalized, total)
        if self.traits:
            rows.append(f"  Of {self.inspected:,} kept pairs, look at those with")
            rows += self._rows(self.traits, self.inspected)
        return "\n".join(rows)

    def _rows(self, counts: dict[str, int], total: int) -> Iterator[str]:
        """A line for each count, with an example."""
        for reason, count in Counter(counts).most_common():
            example = self.examples[reason][0]
            texts = " ||| ".join(printable(example[side], SHOWN_CHARACTERS) for side in SIDES)
            share = count / total
            yield f"  {reason:46} {count:>11,}  {share:>7.2%}  line {example['line']}: {texts}"


def clean_pairs(
    pairs: Pairs,
    *,
    report: CleaningReport | None = None,
    on_rejected: OnRejected = lambda *_: None,
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
        ValueError: with the first pair, if an option is invalid, or py3langid is required but not installed; a pair is
            not two strings; or a file cannot be read, see `Corpus.lines`.
    """
    report = CleaningReport("pairs") if report is None else report
    yield from cleaned(pairs, CleaningOptions(**options), report, on_rejected)


def cleaned(
    pairs: Pairs,
    options: CleaningOptions,
    report: CleaningReport,
    on_rejected: OnRejected = lambda *_: None,
) -> Iterator[ParallelLine]:
    """See `clean_pairs`. Passes with the same options object read the excluded files once."""
    lines = as_written(pairs, options, report)
    sample: list[Line] = []
    if options.min_script_share is not None:
        sample += islice(lines, SAMPLE_LINES)
        report.scripts = accepted_scripts(options, sample)
    for line, reason in filtered(chain(sample, lines), options, report.scripts):
        report.lines += 1
        if reason is not None:
            report.drop(line, reason)
            on_rejected(line, reason)
        elif isinstance(line, ParallelLine):
            yield line


def as_written(pairs: Pairs, options: CleaningOptions, report: CleaningReport) -> Iterator[Line]:
    """The lines with their texts as they are written."""
    if isinstance(pairs, Corpus):
        lines = pairs.lines()
    else:
        lines = (parse_pair(number, *checked(pair, number)) for number, pair in enumerate(pairs, start=1))
    for line in lines:
        if isinstance(line, ParallelLine):
            line = ParallelLine(line.number, as_cell(line.source), as_cell(line.target))
            if options.normalization != "off":
                line = report.normalize(line)
        yield line


def checked(pair: Any, number: int) -> Pair:
    """A pair; raises a `ValueError` unless it is two strings."""
    if not is_pair(pair) or not all(isinstance(text, str) for text in pair):
        raise ValueError(f"pairs must be two strings each, got {format_value(pair)} as pair {number}.")
    return pair


def filtered(lines: Iterable[Line], options: CleaningOptions, scripts: Scripts) -> Iterator[tuple[Line, str | None]]:
    """The lines, and the reason to drop each."""
    filters = [*filters_of(options, scripts)]
    for line in lines:
        reason = line.reason if isinstance(line, InvalidLine) else None
        for check in filters:
            reason = reason or check(line.source, line.target)
        yield line, reason


def accepted_scripts(options: CleaningOptions, lines: Sequence[Line]) -> Scripts:
    """The scripts of both sides, from the options or from the first remaining pairs of the lines.

    The scripts determine which pairs remain. Scripts that are rare in the remaining pairs are removed until there are
    none. Therefore, cleaning the remaining pairs again finds at least these scripts, and drops nothing.
    """
    chosen = {"source": options.source_script, "target": options.target_script}
    scripts = {side: [*(names or ())] for side, names in chosen.items()}
    while True:
        remaining = (line for line, reason in filtered(lines, options, scripts) if reason is None)
        sample = [*islice(remaining, SAMPLE_PAIRS)]
        earlier = dict(scripts)
        for side in SIDES:
            if chosen[side] is None:
                frequent = scripts_of(getattr(line, side) for line in sample)
                still_frequent = [name for name in scripts[side] if name in frequent]
                scripts[side] = still_frequent or scripts[side] or frequent
        if scripts == earlier:
            return scripts


def line_format(paths: Sequence[StrPath]) -> Callable[[ParallelLine], list[str]]:
    """A function from a pair to the lines of these files: one with both sides, or one for each side.

    Raises:
        ValueError: the files have other formats.
    """
    formats = [*map(file_format, paths)]
    if formats == ["text", "text"]:
        return lambda pair: [pair.source, pair.target]
    if formats == ["jsonl"]:
        return lambda pair: [json.dumps({"source": pair.source, "target": pair.target}, ensure_ascii=False)]
    if formats == ["tsv"] or (len(paths) == 1 and is_stream(paths[0])):
        return lambda pair: [tsv_line(pair.source, pair.target)]
    names = " and ".join(map(str, paths))
    raise ValueError(f"output must be a .tsv or .jsonl file, or a text file for each side, got {names}.")


def clean_files(
    corpus: Corpus,
    output: StrPath,
    output_target: StrPath | None = None,
    *,
    rejected_file: StrPath | None = None,
    report_file: StrPath | None = None,
    split: Sequence[int] = (),
    **options: Any,
) -> CleaningReport:
    """Write the pairs that pass the filters.

    Files are compressed by their suffixes, `.gz`, `.zst`, `.bz2` or `.xz`. All files are replaced when all of them are
    complete. One of them may be `-`, standard output. The filters are applied to the texts as they are written:
    normalized, without byte order marks at the start and line breaks at the end, and with spaces for other line breaks
    and tabs. Cleaning an output again with the same options drops nothing.

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
            standard output, the files of the corpus have different numbers of lines, are damaged or have another
            encoding, or no pair is kept.
        OSError: a file cannot be read or written.
    """
    settings = CleaningOptions(**options)
    pair_files = [path for path in (output, output_target) if path is not None]
    lines_of = line_format(pair_files)
    sets = files_by_set(pair_files, split)
    outputs = [("output", path) for paths in sets.values() for path in paths]
    outputs += drop_none(rejected_file=rejected_file, report_file=report_file).items()
    check_outputs(corpus, outputs, settings.exclude or ())
    if split:
        corpus.require_files()
    held_out = Split(lambda: cleaned(corpus, settings, CleaningReport(str(corpus))), split)
    report = CleaningReport(str(corpus), sets=dict.fromkeys(sets, 0))
    paths = [path for _, path in outputs]
    with create_binaries(paths) as opened:
        files = dict(zip(paths, opened, strict=True))

        def write(set_name: str, pair: ParallelLine) -> None:
            for path, line in zip(sets[set_name], lines_of(pair), strict=True):
                write_line(files[path], line)

        reject = rejecting(None if rejected_file is None else files[rejected_file])
        write_cleaned(cleaned(corpus, settings, report, reject), held_out, report, write, reject)
        if report_file is not None:
            write_report(files[report_file], report, settings)
    return report


def files_by_set(paths: Sequence[StrPath], split: Sequence[int]) -> dict[str, Sequence[StrPath]]:
    """The files of each set. The files of held-out sets are in the folder of the training set."""
    files = {"train": paths}
    for path in paths if split else ():
        if is_stream(path):
            raise ValueError(f"output must be a file with split, got {path}.")
    for name in HELD_OUT_SETS[: len(split)]:
        files[name] = [name_of_set(Path(path), name) for path in paths]
    return files


def check_outputs(corpus: Corpus, outputs: Sequence[tuple[str, StrPath]], excluded: Sequence[str]) -> None:
    """Raise a `ValueError` for outputs that cannot be written, or that overwrite a file that is read or each other."""
    inputs = corpus.files | {f"exclude {number}": Path(path) for number, path in enumerate(excluded, start=1)}
    for name, path in outputs:
        check_output(name, path, **inputs)
    if len({Path(path).resolve() for _, path in outputs}) < len(outputs):
        raise ValueError(f"outputs must differ from each other, got {', '.join(str(path) for _, path in outputs)}.")


def write_cleaned(
    pairs: Iterable[ParallelLine],
    held_out: Split,
    report: CleaningReport,
    write: Callable[[str, ParallelLine], None],
    reject: OnRejected,
) -> None:
    """Write each pair to its set, or reject it if it shares a text with a held-out one.

    Raises:
        ValueError: the training set has no pairs, or the text has another encoding than UTF-8.
    """
    kept: list[ParallelLine] = []
    with progress_bar(unit="pair") as bar:
        for pair in pairs:
            set_name = held_out.set_of(pair)
            if set_name is None:
                report.drop(pair, SHARES_HELD_OUT_TEXT)
                reject(pair, SHARES_HELD_OUT_TEXT)
                continue
            bar.update()
            report.sets[set_name] += 1
            if len(kept) < INSPECTED_PAIRS:
                kept.append(pair)
            write(set_name, pair)
    # After an error, the outputs do not replace earlier files.
    report.check_encoding()
    if not report.sets["train"]:
        counts = [f"{count:,} {reason}" for reason, count in report.counts.items()]
        counts += [f"{count:,} of the {set_name} set" for set_name, count in report.sets.items() if count]
        listed = ", ".join(counts) or "none"
        raise ValueError(f"{report.name} must have a pair to keep, got {report.lines:,} pairs: {listed}.")
    report.inspect(kept)


def rejecting(file: IO[bytes] | None) -> OnRejected:
    """A function that writes dropped lines to a file, if there is one."""

    def reject(line: Line, reason: str) -> None:
        if file is not None:
            write_line(file, tsv_line(reason, str(line.number), line.source, line.target))

    return reject


def write_report(file: IO[bytes], report: CleaningReport, options: CleaningOptions) -> None:
    content = asdict(report) | {"kept": report.valid, "options": asdict(options)}
    text = json.dumps(content, indent=2, ensure_ascii=False)
    file.write(f"{text}\n".encode(errors="backslashreplace"))  # file names may be invalid UTF-8


def write_line(file: IO[bytes], line: str) -> None:
    file.write(f"{line}\n".encode())


def tsv_line(*texts: str) -> str:
    return "\t".join(quoted(as_cell(text)) for text in texts)


def as_cell(text: str) -> str:
    """A text as one line and one cell of a TSV file, without byte order marks at the start, which readers remove."""
    return one_line(text.lstrip("\ufeff").rstrip("\r\n")).replace("\t", " ")
