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
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from ..data.cleaning import clean_files
from ..data.filters import COPIES, DUPLICATES, UNITS, CleaningOptions
from ..data.sources import ParallelText
from ..utils.command_line import Parser, exit_status
from ..utils.compressed_files import check_readable

SCRIPT = "clean"


def main(argv: Sequence[str] | None = None) -> int:
    """Clean according to the command line.

    Returns:
        The exit status: 0 on success, 2 if an argument or a file is invalid, 130 after Ctrl-C.
    """
    arguments = parse_arguments(argv)
    return exit_status(SCRIPT, lambda: run(arguments))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid arguments exit with status 2."""
    parser = Parser(SCRIPT, __doc__)
    add_file_arguments(parser)
    add_filter_arguments(parser)
    add_identification_arguments(parser)
    arguments = parser.parse_args(argv)
    given = [name for name in ("train_file", "source_file", "target_file") if getattr(arguments, name)]
    if given not in (["train_file"], ["source_file", "target_file"]):
        parser.error(f"--train_file, or --source_file and --target_file, must be given, got {given or 'none'}.")
    given = [name for name in ("output", "output_source", "output_target") if getattr(arguments, name)]
    if given not in (["output"], ["output_source", "output_target"]):
        parser.error(f"--output, or --output_source and --output_target, must be given, got {given or 'none'}.")
    return arguments


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of inputs and outputs."""
    for name, text in (
        ("source_file", "sources, one per line; - is standard input"),
        ("target_file", "targets, aligned with --source_file by line"),
        ("train_file", "both sides in a .tsv, .jsonl or .parquet file; - is TSV on standard input"),
        ("output_source", "text file of the remaining sources"),
        ("output_target", "text file of the remaining targets"),
        ("output", ".tsv or .jsonl file of the remaining pairs; - is TSV on standard output"),
        ("rejected", "TSV file of the dropped lines: reason, line number, source, target"),
        ("report", "JSON file of the report"),
    ):
        parser.add_argument(f"--{name}", type=Path, metavar="FILE", help=text)
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}_key",
            default=side,
            metavar="KEY",
            help=f"column of the {side} in --train_file: a name, or a number from 1 (default: %(default)s)",
        )


def add_filter_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the filters."""
    default = CleaningOptions()
    add = parser.add_argument
    shown = "(default: %(default)s)"
    add("--copies", choices=COPIES, default=default.copies, help=f"copies of the source to drop {shown}")
    add("--duplicates", choices=DUPLICATES, default=default.duplicates, help=f"what must not occur twice {shown}")
    add("--length_unit", choices=UNITS, default=default.length_unit, help=f"unit of lengths {shown}")
    add(
        "--max_length",
        type=off_or(int),
        default=default.max_length,
        metavar="N",
        help=f"drop pairs with a longer side {shown}; 'off' for no limit",
    )
    add(
        "--max_length_ratio",
        type=off_or(float),
        default=default.max_length_ratio,
        metavar="X",
        help=f"drop pairs with one side more than X times as long as the other {shown}; 'off' for no limit",
    )
    add(
        "--min_script_share",
        type=off_or(float),
        default=default.min_script_share,
        metavar="X",
        help=f"drop pairs with a smaller share of letters in the expected scripts {shown}; 'off' for any script",
    )


def add_identification_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options that name scripts and languages."""
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}_script",
            nargs="+",
            metavar="NAME",
            help=f"Unicode scripts of the {side}, such as Latin (default: the scripts of most letters)",
        )
    for side in ("source", "target"):
        parser.add_argument(
            f"--{side}_lang",
            metavar="CODE",
            help=f"drop pairs whose {side} is identified as another language; requires py3langid",
        )
    parser.add_argument(
        "--min_language_probability",
        type=float,
        default=CleaningOptions.min_language_probability,
        metavar="X",
        help="least probability of another language to drop a pair (default: %(default)s)",
    )


def off_or(number: Callable[[str], Any]) -> Callable[[str], Any]:
    """Argument type: a number, or `None` for `off`."""

    def parse(text: str) -> Any:
        try:
            return None if text == "off" else number(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be a number or 'off', got {text!r}.") from error

    return parse


def run(arguments: argparse.Namespace) -> None:
    """Clean, and print the report on stderr."""
    for name in ("train_file", "source_file", "target_file"):
        if (path := getattr(arguments, name)) is not None:
            check_readable(name, path)
    corpus = ParallelText(*inputs(arguments), arguments.source_key, arguments.target_key)
    options: dict[str, Any] = {field.name: getattr(arguments, field.name) for field in fields(CleaningOptions)}
    report = clean_files(
        corpus, *outputs(arguments), rejected_file=arguments.rejected, report_file=arguments.report, **options
    )
    print(report, file=sys.stderr)


def inputs(arguments: argparse.Namespace) -> tuple[Path, Path | None]:
    """The file or the files of the corpus."""
    return (arguments.train_file, None) if arguments.train_file else (arguments.source_file, arguments.target_file)


def outputs(arguments: argparse.Namespace) -> tuple[Path, Path | None]:
    """The file or the files to write."""
    return (arguments.output, None) if arguments.output else (arguments.output_source, arguments.output_target)
