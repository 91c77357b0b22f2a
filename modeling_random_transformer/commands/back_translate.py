"""Translate monolingual text of the target language with a reverse model to a synthetic parallel corpus.

    random-transformer back-translate --model outputs/de-en --input mono.de \\
        --output_source synthetic.en --output_target synthetic.de --method noised_beam

The model translates from the target to the source language. Line n of --output_source is the synthetic source of line n
of --output_target. Each synthetic source begins with the tag: train with --special_tokens "<bt>" to make it one token,
and with --special_tokens "<bt>" "<blank>" for noised sources.
Files may be compressed (.gz, .zst). The same command resumes after an interruption, and `accelerate launch` distributes
the work over processes.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

from ..augmentation.back_translation import METHODS, TAG, back_translate
from ..data.readers import TEXT_KEYS
from ..inference.loading import load_models
from ..utils.distributed import exit_with_launcher, start_processes
from .command_line import (
    Parser,
    add_job_arguments,
    add_language_arguments,
    add_model_argument,
    existing_file_or_stdin,
    given,
    output_file,
    positive_integer,
    positive_number,
    run_command,
)

PROGRAM = "random-transformer back-translate"


def main(argv: Sequence[str] | None = None) -> int:
    """Back-translate according to the command line. Returns the exit status, see `run_command`."""
    exit_with_launcher()
    arguments = parse_arguments(argv)
    return run_command(lambda: run(arguments), PROGRAM)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid arguments exit with status 2."""
    parser = Parser(PROGRAM, __doc__)
    add_file_arguments(parser)
    add_method_arguments(parser)
    add_language_arguments(parser)
    parser.add_argument(
        "--max_tokens",
        type=positive_integer,
        metavar="N",
        help="skip lines with more tokens (default: the limit of the tokenizer or the model)",
    )
    add_job_arguments(parser, "texts × beams × tokens of the longest text", unit="lines")
    arguments = parser.parse_args(argv)
    if arguments.temperature is not None and arguments.method != "sampling":
        parser.error(f"--temperature must be given with --method sampling, got --method {arguments.method}.")
    if (arguments.num_beams or 1) > 1 and arguments.method == "sampling":
        parser.error(f"--num_beams must be 1 or unset with --method sampling, got {arguments.num_beams}.")
    return arguments


def add_file_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the model, the input and the outputs."""
    add_model_argument(parser)
    parser.add_argument(
        "--input",
        required=True,
        type=existing_file_or_stdin,
        metavar="FILE",
        help="UTF-8 text of the target language, one text per line; or a .tsv, .jsonl or .parquet file; - is standard "
        "input",
    )
    parser.add_argument(
        "--text_key",
        default=TEXT_KEYS[0],
        metavar="KEY",
        help="column of the text in a file with columns: a name, or a number from 1",
    )
    parser.add_argument(
        "--output_source", required=True, type=output_file, metavar="FILE", help="file of synthetic sources to write"
    )
    parser.add_argument(
        "--output_target", required=True, type=output_file, metavar="FILE", help="file of their targets to write"
    )


def add_method_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the search, the noise and the tag."""
    parser.add_argument(
        "--method",
        choices=tuple(METHODS),
        default="beam",
        help="beam search, sampling, or beam search with noise",
    )
    tag = parser.add_mutually_exclusive_group()
    tag.add_argument("--tag", default=TAG, metavar="TEXT", help="begins each synthetic source")
    tag.add_argument("--no_tag", dest="tag", action="store_const", const=None, help="write no tag")
    parser.add_argument("--num_beams", type=positive_integer, metavar="N", help="beam size (default: 4)")
    parser.add_argument(
        "--temperature", type=positive_number, metavar="X", help="temperature of --method sampling (default: 1)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of sampling and noise")


def run(arguments: argparse.Namespace) -> None:
    """Load the model, translate, and print the counts."""
    state = start_processes(arguments.device)
    model, tokenizer = load_models(arguments.model, arguments.dtype, arguments.device or state.device, "--model")
    names = ("text_key", "method", "tag", "seed", "max_tokens", "max_batch_tokens", "chunk_size", "restart")
    options: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    options |= given(arguments, ("num_beams", "temperature", "src_lang", "tgt_lang"))
    report = back_translate(
        arguments.input, arguments.output_source, arguments.output_target, model, tokenizer, **options
    )
    if state.is_main_process:
        print(report, file=sys.stderr)
    state.destroy_process_group()
