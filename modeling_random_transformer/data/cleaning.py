"""Cleaning of files."""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from os import PathLike
from pathlib import Path
from typing import IO, Any

from transformers.utils.logging import tqdm

from ..utils.compressed_files import create_binaries, is_standard_stream
from ..utils.text import one_line
from .cleaning_pairs import RejectedLine, clean_pairs
from .cleaning_report import CleaningReport
from .filters import CleaningOptions
from .readers import file_format
from .sources import Corpus, ParallelLine, ParallelText


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
        normalize, write = _format(outputs)
        rejected = files.get("rejected_file")
        on_rejected = None if rejected is None else lambda line: rejected.write(_rejected_line(line))
        pairs = clean_pairs(corpus, report=report, on_rejected=on_rejected, normalize=normalize, **options)
        for line in _with_progress(pairs, report, progress):
            write(line, *opened[: len(outputs)])
        if report.kept == 0:  # before the outputs replace earlier files
            reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.dropped.items())
            raise ValueError(f"{corpus} must have a pair to keep, got {report.pairs:,} pairs: {reasons or 'none'}.")
        if report_file is not None:
            content = {**report.to_dict(), "options": asdict(CleaningOptions(**options))}
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


def _format(outputs: list[Path]) -> tuple[Callable[[str], str], Callable[..., Any]]:
    """How texts are normalized, so that they are read as they are written, and how a pair is written to the outputs."""
    if len(outputs) == 2:
        return lambda text: one_line(_text(text)), _write_texts
    if file_format(outputs[0]) == "jsonl":
        return _text, _write_json
    return _cell, _write_tsv


def _write_texts(line: ParallelLine, sources: IO[bytes], targets: IO[bytes]) -> None:
    sources.write(f"{line.source}\n".encode())
    targets.write(f"{line.target}\n".encode())


def _write_tsv(line: ParallelLine, file: IO[bytes]) -> None:
    file.write(f"{line.source}\t{line.target}\n".encode())


def _write_json(line: ParallelLine, file: IO[bytes]) -> None:
    pair = json.dumps({"source": line.source, "target": line.target}, ensure_ascii=False)
    file.write(f"{pair}\n".encode())


def _text(text: str) -> str:
    """A text without what readers remove: byte order marks at the start, and line breaks at the end."""
    return text.lstrip("\ufeff").rstrip("\r\n")


def _rejected_line(rejected: RejectedLine) -> bytes:
    line = rejected.line
    return "\t".join([rejected.reason, str(line.number), _cell(line.source), _cell(line.target)]).encode() + b"\n"


def _cell(text: str) -> str:
    """A text as a cell of a TSV file."""
    return one_line(_text(text)).replace("\t", " ")


def _with_progress(pairs: Iterator[ParallelLine], report: CleaningReport, shown: bool | None) -> Iterator[ParallelLine]:
    """Show the number of pairs that were read."""
    with tqdm(unit="pair", desc="cleaning", disable=shown is False, delay=0 if shown else 5, mininterval=1) as bar:
        for index, line in enumerate(pairs):
            if index % 1000 == 0:
                bar.update(report.pairs - bar.n)
            yield line
        bar.update(report.pairs - bar.n)
