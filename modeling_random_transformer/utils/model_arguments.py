"""Arguments that the commands with a saved model have in common."""

import argparse
from collections.abc import Iterable
from pathlib import Path

from .command_line import model_folders, output_file, positive_integer, write_to_stdout
from .compressed_files import is_standard_stream, write_binary

DTYPES = ("float32", "bfloat16", "int8")


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add --model, whose values `join_folders` joins."""
    parser.add_argument(
        "--model",
        required=True,
        type=model_folders,
        metavar="FOLDER",
        help="a saved model and its tokenizer; several folders form an ensemble, which averages log-probabilities",
    )


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    """Add --output."""
    parser.add_argument(
        "--output",
        type=output_file_or_stdout,
        metavar="FILE",
        help="file to write, compressed if its name ends with .gz or .zst; - is standard output (the default)",
    )


def output_file_or_stdout(text: str) -> Path | None:
    """Argument type: a file to write, or `None` for standard output."""
    return None if is_standard_stream(text) else output_file(text)


def write_output(path: Path | None, lines: Iterable[bytes]) -> None:
    """Write lines to the value of --output: to a file, atomically, or to standard output."""
    if path is None:
        write_to_stdout(lines)
    else:
        write_binary(path, lines)


def add_language_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --src_lang and --tgt_lang."""
    parser.add_argument("--src_lang", metavar="CODE", help="source language, for a model of several")
    parser.add_argument("--tgt_lang", metavar="CODE", help="target language, for a model of several")


def add_job_arguments(parser: argparse.ArgumentParser, size: str, unit: str) -> None:
    """Add --max_batch_tokens, --chunk_size, --dtype, --device and --restart.

    Args:
        parser: the parser.
        size: what the size of a batch is, for the help.
        unit: what is sorted by length, for the help.
    """
    parser.add_argument(
        "--max_batch_tokens",
        type=positive_integer,
        default=4096,
        metavar="N",
        help=f"batch size: {size} (default: %(default)s; increase it on a GPU)",
    )
    parser.add_argument(
        "--chunk_size",
        type=positive_integer,
        default=1000,
        metavar="N",
        help=f"{unit} that are sorted by length together; an interruption loses at most one chunk per process "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", *DTYPES),
        default="auto",
        help="dtype of the weights; int8 also quantizes activations, for speed on a CPU "
        "(default: %(default)s, the saved one)",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="device, such as cpu or cuda:1 (default: an accelerator if available)"
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard the work of an interrupted run with the same output"
    )
