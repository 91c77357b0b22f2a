"""Translate sentences, a file or standard input with a saved model.

    random-transformer translate --model outputs/quickstart "the boy sees the girl" "we read two books"
    random-transformer translate --model outputs/quickstart                       # interactive, line by line
    random-transformer translate --model outputs/quickstart < test.en > test.es
    random-transformer translate --model outputs/quickstart --input test.en --output test.es
    random-transformer translate --model outputs/first --model outputs/second --input test.en --output test.es
    accelerate launch --multi_gpu --num_processes 8 -m modeling_random_transformer translate \\
        --model outputs/quickstart --input big.en --output big.es
    random-transformer translate --model outputs/four --source_lang en --target_lang de "a dog sees a cat"

Line n of the output translates line n of the input. With --input and --output, the same command resumes after an
interruption, and `accelerate launch` distributes the file over processes (with --multi_gpu on CPUs too, because its
--cpu option starts one process only).
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..inference.loading import load_models
from ..inference.translation import TranslationOptions, stream_candidates
from ..inference.translation_files import FORMATS, candidate_format, format_all, open_lines, translate_file
from ..inputs_random_transformer import name_lines_in_errors
from ..utils.compressed_files import check_plain_text, is_standard_stream, open_binary
from ..utils.distributed import exit_with_launcher, start_processes
from ..utils.text import encode_lines, read_lines
from .command_line import (
    Parser,
    add_job_arguments,
    add_language_arguments,
    add_model_argument,
    add_output_argument,
    check_differs_from_output,
    existing_file,
    given,
    positive_integer,
    positive_number,
    run_command,
    write_output,
)

PROGRAM = "random-transformer translate"


def main(argv: Sequence[str] | None = None) -> int:
    """Translate according to the command line. Returns the exit status, see `run_command`."""
    exit_with_launcher()
    arguments = parse_arguments(argv)
    return run_command(partial(run, arguments), PROGRAM)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid arguments exit with status 2."""
    parser = Parser(PROGRAM, __doc__)
    parser.add_argument("sentences", nargs="*", metavar="sentence", help="a text to translate, instead of a file")
    add_model_argument(parser)
    parser.add_argument(
        "--input",
        type=input_file,
        metavar="FILE",
        help="UTF-8 file, one text per line, which may be compressed (.gz, .zst); - is standard input (the default)",
    )
    add_output_argument(parser)
    add_language_arguments(parser)
    add_search_arguments(parser)
    add_output_arguments(parser)
    add_job_arguments(parser, "texts × beams × tokens of the longest text", unit="lines")
    parser.add_argument(
        "--max_source_tokens",
        type=positive_integer,
        metavar="N",
        help="truncate longer texts (default: a text above the tokenizer's or the model's limit is an error)",
    )
    arguments = parser.parse_intermixed_args(argv)
    check_combinations(arguments, parser)
    return arguments


def add_search_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of beam search and sampling."""
    parser.add_argument(
        "--num_beams", type=positive_integer, metavar="N", help="beam size (default: 4, or 1 with --sample)"
    )
    parser.add_argument(
        "--length_penalty",
        type=float,
        default=0.6,
        metavar="X",
        help="larger values favor longer translations",
    )
    parser.add_argument("--sample", action="store_true", help="sample from the model's distribution")
    parser.add_argument("--temperature", type=positive_number, metavar="X", help="temperature of --sample (default: 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="random seed of --sample")


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of n-best lists and forced prefixes."""
    parser.add_argument(
        "--n_best",
        type=positive_integer,
        metavar="N",
        help="write the N best translations of each text with their scores, at most --num_beams",
    )
    parser.add_argument(
        "--output_format",
        choices=FORMATS,
        default="text",
        help="text: one translation per line; with --n_best, 'index ||| translation ||| score'",
    )
    parser.add_argument(
        "--prefix_file",
        type=existing_file,
        metavar="FILE",
        help="what each translation must begin with, line by line; an empty line allows anything",
    )


def check_combinations(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exit with an error if arguments contradict each other."""
    source = arguments.input
    if arguments.sentences and source:
        parser.error(f"sentences and --input must not be given together, got {arguments.sentences} and {source}.")
    if arguments.temperature is not None and not arguments.sample:
        parser.error(f"--temperature must be given with --sample, got {arguments.temperature} without it.")
    beams = arguments.num_beams or (1 if arguments.sample else 4)
    if arguments.n_best is not None and arguments.n_best > beams and not (arguments.sample and beams == 1):
        parser.error(f"--n_best must be at most --num_beams {beams}, got {arguments.n_best}.")
    check_differs_from_output(parser, arguments.output, input=source, prefix_file=arguments.prefix_file)


def input_file(text: str) -> Path | None:
    """Argument type: an existing file, or `None` for standard input."""
    return None if is_standard_stream(text) else existing_file(text)


def run(arguments: argparse.Namespace) -> None:
    """Load the model and translate."""
    if arguments.input:
        check_plain_text("--input", arguments.input)
    state = start_processes(arguments.device)
    from_file_to_file = bool(arguments.output and arguments.input and arguments.input.is_file())
    if state.num_processes > 1 and not from_file_to_file:
        raise ValueError(f"--input and --output must both be files with {state.num_processes} processes.")
    model, tokenizer = load_models(arguments.model, arguments.dtype, arguments.device or state.device, "--model")
    options = translation_options(arguments)
    if from_file_to_file:
        formats = {"prefix_file": arguments.prefix_file, "output_format": arguments.output_format}
        translate_file(
            arguments.input, arguments.output, model, tokenizer, restart=arguments.restart, **formats, **options
        )
    else:
        translate_lines(arguments, model, tokenizer, options)
    state.destroy_process_group()


def translation_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of `translate` and of `generate()`."""
    names = ("length_penalty", "max_batch_tokens", "max_source_tokens", "chunk_size", "n_best")
    options = {name: getattr(arguments, name) for name in names}
    options |= given(arguments, ("src_lang", "tgt_lang"))
    options["num_beams"] = arguments.num_beams or (1 if arguments.sample else 4)
    if arguments.sample:
        # top_k=0: sample from the complete vocabulary, not from transformers' default of 50 tokens.
        options |= {"do_sample": True, "top_k": 0, "temperature": arguments.temperature or 1.0, "seed": arguments.seed}
    return options


def translate_lines(
    arguments: argparse.Namespace, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, options: dict[str, Any]
) -> None:
    """Translate sentences, standard input or a file to standard output or a file, in a single pass."""
    chunk_size, progress = options.pop("chunk_size"), None
    if not arguments.sentences and not arguments.input and sys.stdin.isatty():
        print("Enter one text per line; end with Ctrl-D.", file=sys.stderr)
        chunk_size, progress = 1, False
    in_file = nullcontext() if arguments.sentences else name_lines_in_errors(str(arguments.input or "stdin"))
    with in_file, open_texts(arguments) as texts, open_lines(arguments.prefix_file) as prefixes:
        settings = TranslationOptions.from_kwargs(**options)
        candidates = stream_candidates(texts, model, tokenizer, settings, prefixes, chunk_size, progress)
        write = candidate_format(arguments.output_format, settings.n_best)
        lines = encode_lines(format_all(candidates, write))
        write_output(arguments.output, lines)


@contextmanager
def open_texts(arguments: argparse.Namespace) -> Iterator[Iterable[str]]:
    """The sentences of the command line, or the lines of the input."""
    if arguments.sentences:
        yield arguments.sentences
    elif arguments.input:
        with open_binary(arguments.input) as file:
            yield read_lines(file, str(arguments.input))
    else:
        yield read_lines(sys.stdin.buffer, "stdin")
