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
from dataclasses import fields
from typing import Any

from ..augmentation.back_translation import BackTranslationOptions, back_translate
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
    add_model_argument(parser)
    for name, kind, text in (
        ("input", existing_file_or_stdin, "text of the target language, one per line; or a file with columns; or -"),
        ("output_source", output_file, "file of synthetic sources to write"),
        ("output_target", output_file, "file of their targets to write"),
    ):
        parser.add_argument(f"--{name}", required=True, type=kind, metavar="FILE", help=text)
    parser.add_options(BackTranslationOptions)
    parser.add_argument("--num_beams", type=positive_integer, metavar="N", help="beam size (default: 4)")
    parser.add_argument(
        "--temperature", type=positive_number, metavar="X", help="temperature of --method sampling (default: 1)"
    )
    add_language_arguments(parser)
    add_job_arguments(parser, "texts × beams × tokens of the longest text", unit="lines")
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> None:
    """Load the model, translate, and print the counts."""
    state = start_processes(arguments.device)
    model, tokenizer = load_models(arguments.model, arguments.dtype, arguments.device or state.device, "--model")
    names = (*(field.name for field in fields(BackTranslationOptions)), "max_batch_tokens", "chunk_size", "restart")
    options: dict[str, Any] = {name: getattr(arguments, name) for name in names}
    options |= given(arguments, ("num_beams", "temperature", "src_lang", "tgt_lang"))
    files = arguments.input, arguments.output_source, arguments.output_target
    report = back_translate(*files, model, tokenizer, **options)
    if state.is_main_process:
        print(report, file=sys.stderr)
    state.destroy_process_group()
