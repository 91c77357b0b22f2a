"""Clean parallel text: drop duplicates, copies of the source, and pairs of unlikely lengths, scripts or languages.

    random-transformer clean --source_file train.en --target_file train.de \\
        --output_source clean.en --output_target clean.de --report report.json --rejected rejected.tsv
    random-transformer clean --train_file train.tsv.gz --output clean.tsv.gz
    zcat *.tsv.gz | random-transformer clean --train_file - --output clean.tsv.zst --source_lang en --target_lang de

A table on stderr counts the dropped pairs by reason, each with an example. Input and output may be compressed (.gz,
.zst). Each output is replaced when the complete corpus has been read; one of them may be -, standard output.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from ..data.cleaning import clean_files
from ..data.filters import CleaningOptions
from ..data.sources import ParallelText
from ..utils.compressed_files import check_readable
from .command_line import Parser, add_key_arguments, run_command

PROGRAM = "random-transformer clean"


def main(argv: Sequence[str] | None = None) -> int:
    """Clean according to the command line. Returns the exit status, see `run_command`."""
    arguments = parse_arguments(argv)
    return run_command(lambda: run(arguments), PROGRAM)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid arguments exit with status 2."""
    parser = Parser(PROGRAM, __doc__)
    for name, text in (
        ("source_file", "sources, one per line; - is standard input"),
        ("target_file", "targets, aligned with --source_file by line"),
        ("train_file", "both sides in a .tsv, .csv, .jsonl or .parquet file; - is TSV on standard input"),
        ("output_source", "text file of the remaining sources"),
        ("output_target", "text file of the remaining targets"),
        ("output", ".tsv or .jsonl file of the remaining pairs; - is TSV on standard output"),
        ("rejected", "TSV file of the dropped lines: reason, line number, source, target"),
        ("report", "JSON file of the report"),
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=text)
    add_key_arguments(parser, ("source", "target"), "--train_file")
    parser.add_options(CleaningOptions)
    arguments = parser.parse_args(argv)
    for one, *pair in (("train_file", "source_file", "target_file"), ("output", "output_source", "output_target")):
        given = [name for name in (one, *pair) if getattr(arguments, name)]
        if given not in ([one], pair):
            parser.error(f"--{one}, or --{pair[0]} and --{pair[1]}, must be given, got {given or 'none'}.")
    return arguments


def run(arguments: argparse.Namespace) -> None:
    """Clean, and print the report on stderr."""
    for name in ("train_file", "source_file", "target_file"):
        if (path := getattr(arguments, name)) is not None:
            check_readable(name, path)
    source = arguments.train_file or arguments.source_file
    corpus = ParallelText(source, arguments.target_file, arguments.source_key, arguments.target_key)
    options = {field.name: getattr(arguments, field.name) for field in fields(CleaningOptions)}
    files = {"rejected_file": arguments.rejected, "report_file": arguments.report}
    output = arguments.output or arguments.output_source
    print(clean_files(corpus, output, arguments.output_target, **files, **options), file=sys.stderr)
