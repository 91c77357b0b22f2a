"""Translate sentences, a file or standard input with a saved model.

    random-transformer translate --model outputs/quickstart "the boy sees the girl" "we read two books"
    random-transformer translate --model outputs/quickstart                       # interactive, line by line
    random-transformer translate --model outputs/quickstart < test.en > test.es
    random-transformer translate --model outputs/quickstart --input test.en --output test.es
    random-transformer translate --model outputs/first outputs/second --input test.en --output test.es    # ensemble
    accelerate launch --multi_gpu --num_processes 8 -m modeling_random_transformer translate \\
        --model outputs/quickstart --input big.en --output big.es
    random-transformer translate --model outputs/four --src_lang en --tgt_lang de "a dog sees a cat"

Line n of the output translates line n of the input. With --input and --output, the same command resumes after an
interruption, and `accelerate launch` distributes the file over processes (with --multi_gpu on CPUs too, because its
--cpu option starts one process only).
"""

import argparse
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import LARGE_INTEGER

from ..ensemble import load_ensemble
from ..loading import check_finite
from ..ops_random_transformer import supports_native_matmul
from ..utils.command_line import (
    Parser,
    existing_file,
    exit_status,
    join_folders,
    model_folders,
    output_file,
    positive_integer,
    positive_number,
)
from ..utils.compressed_files import is_standard_stream, open_binary, write_binary
from ..utils.errors import first_line
from ..utils.text import encode_lines, read_lines
from .files import translate_file
from .formats import FORMATS, candidate_format, format_all
from .streams import TranslationOptions, stream_chunks

SCRIPT = "translate.py"


def main(argv: Sequence[str] | None = None) -> int:
    """Translate according to the command line.

    Returns:
        The exit status: 0 on success; 1 if the model's weights are not finite; 2 if an argument, a file or a text is
        invalid; 130 after Ctrl-C.
    """
    exit_with_launcher()
    arguments = parse_arguments(argv)
    return exit_status(SCRIPT, lambda: run(arguments))


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; invalid arguments exit with status 2."""
    parser = Parser(SCRIPT, __doc__)
    parser.add_argument("sentences", nargs="*", metavar="sentence", help="a text to translate, instead of a file")
    add_model_argument(parser)
    parser.add_argument(
        "--input",
        type=input_file,
        metavar="FILE",
        help="UTF-8 file, one text per line, which may be compressed (.gz, .zst); - is standard input (the default)",
    )
    add_output_argument(parser)
    parser.add_argument(
        "--src_lang", metavar="CODE", help="language of the texts, for a model of several source languages"
    )
    parser.add_argument(
        "--tgt_lang", metavar="CODE", help="language to translate to, for a model of several target languages"
    )
    add_search_arguments(parser)
    add_output_arguments(parser)
    parser.add_argument(
        "--max_batch_tokens",
        type=positive_integer,
        default=4096,
        metavar="N",
        help="batch size: texts × beams × tokens of the longest text (default: %(default)s; increase it on a GPU)",
    )
    parser.add_argument(
        "--max_source_tokens",
        type=positive_integer,
        metavar="N",
        help="truncate longer texts (default: a text above the tokenizer's or the model's limit is an error)",
    )
    parser.add_argument(
        "--chunk_size",
        type=positive_integer,
        default=1000,
        metavar="N",
        help="lines that are sorted by length together; an interruption loses at most one chunk per process "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "int8"),
        default="auto",
        help="dtype of the weights; int8 also quantizes activations, for speed on a CPU "
        "(default: %(default)s, the saved one)",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="device, such as cpu or cuda:1 (default: an accelerator if available)"
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard the parts of an interrupted run with the same --output"
    )
    arguments = parser.parse_intermixed_args(join_folders(argv, "--model"))
    check_combinations(arguments, parser)
    return arguments


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
        type=result_file,
        metavar="FILE",
        help="file to write, compressed if its name ends with .gz or .zst; - is standard output (the default)",
    )


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
        help="larger values favor longer translations (default: %(default)s)",
    )
    parser.add_argument("--sample", action="store_true", help="sample from the model's distribution")
    parser.add_argument("--temperature", type=positive_number, metavar="X", help="temperature of --sample (default: 1)")
    parser.add_argument(
        "--seed", type=int, default=0, metavar="N", help="random seed of --sample (default: %(default)s)"
    )


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
        help="text: one translation per line; with --n_best, 'index ||| translation ||| score' (default: %(default)s)",
    )
    parser.add_argument(
        "--prefix_file",
        type=existing_file,
        metavar="FILE",
        help="what each translation must begin with, line by line; an empty line allows anything",
    )


def check_combinations(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Exit with an error if arguments contradict each other."""
    source, output = arguments.input, arguments.output
    if arguments.sentences and source:
        parser.error(f"sentences and --input must not be given together, got {arguments.sentences} and {source}.")
    if arguments.temperature is not None and not arguments.sample:
        parser.error(f"--temperature must be given with --sample, got {arguments.temperature} without it.")
    beams = arguments.num_beams or (1 if arguments.sample else 4)
    if arguments.n_best is not None and arguments.n_best > beams and not (arguments.sample and beams == 1):
        parser.error(f"--n_best must be at most --num_beams {beams}, got {arguments.n_best}.")
    if source and output and output.exists() and output.samefile(source):
        parser.error(f"--output must differ from --input, got {output} for both.")


def input_file(text: str) -> Path | None:
    """Argument type: an existing file, or `None` for standard input."""
    return None if is_standard_stream(text) else existing_file(text)


def result_file(text: str) -> Path | None:
    """Argument type: a file to write, or `None` for standard output."""
    return None if is_standard_stream(text) else output_file(text)


def run(arguments: argparse.Namespace) -> None:
    """Load the model and translate."""
    from accelerate import PartialState  # not required for translating texts
    from accelerate.utils import parse_flag_from_env

    on_cpu = arguments.device == "cpu" or parse_flag_from_env("ACCELERATE_USE_CPU")
    state = PartialState(cpu=on_cpu or not torch.accelerator.is_available())
    from_file_to_file = bool(arguments.output and arguments.input and arguments.input.is_file())
    if state.num_processes > 1 and not from_file_to_file:
        raise ValueError(f"--input and --output must both be files with {state.num_processes} processes.")
    model, tokenizer = load(arguments.model, arguments.dtype, arguments.device or state.device)
    check_finite(model)
    limit_sources(model, tokenizer)
    options = translation_options(arguments)
    if from_file_to_file:
        formats = {"prefix_file": arguments.prefix_file, "output_format": arguments.output_format}
        translate_file(
            arguments.input, arguments.output, model, tokenizer, restart=arguments.restart, **formats, **options
        )
    else:
        translate_lines(arguments, model, tokenizer, options)
    state.destroy_process_group()


def load(
    folders: Sequence[Path], dtype: str, device: str | torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model or an ensemble onto the device, and its tokenizer."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # depends on torch's build
        raise ValueError(f"--device must be an available device, got {device}: {first_line(error)}") from error
    model, tokenizer = load_ensemble(folders, dtype, argument="--model")
    model = model.to(device)
    if model.device.type == "cpu" and model.dtype == torch.bfloat16 and not supports_native_matmul(model.dtype):
        print("This CPU has no instructions for bfloat16: --dtype float32 or int8 is faster.", file=sys.stderr)
    return model, tokenizer


def limit_sources(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Limit a tokenizer without a limit to the positions of the model, so that a line of a megabyte is an error."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and tokenizer.model_max_length > LARGE_INTEGER:
        tokenizer.model_max_length = positions


def translation_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of `translate` and of `generate()`."""
    names = ("length_penalty", "max_batch_tokens", "max_source_tokens", "chunk_size", "n_best")
    options = {name: getattr(arguments, name) for name in names}
    languages = {name: getattr(arguments, name) for name in ("src_lang", "tgt_lang")}
    options |= {name: code for name, code in languages.items() if code is not None}
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
    unit = "index" if arguments.sentences else "line"
    with open_texts(arguments) as texts, open_prefixes(arguments) as prefixes:
        settings = TranslationOptions.from_kwargs(**options)
        candidates = stream_chunks(texts, model, tokenizer, chunk_size, progress, settings, unit, prefixes)
        write = candidate_format(arguments.output_format, settings.n_best)
        lines = encode_lines(format_all(candidates, write))
        if arguments.output:
            write_binary(arguments.output, lines)
        else:
            write_to_stdout(lines)


def write_to_stdout(lines: Iterable[bytes]) -> None:
    """Write each line to standard output as soon as it is available."""
    for line in lines:
        try:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        except OSError as error:
            # Prevents a second error at exit, when Python flushes the buffer again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise OSError(error.errno, error.strerror, "stdout") from error


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


@contextmanager
def open_prefixes(arguments: argparse.Namespace) -> Iterator[Iterable[str] | None]:
    """The lines of --prefix_file; `None` without it."""
    if not arguments.prefix_file:
        yield None
        return
    with open_binary(arguments.prefix_file) as file:
        yield read_lines(file, str(arguments.prefix_file))


def exit_with_launcher(polling_interval: float = 0.2) -> None:
    """Exit this process when its launcher has died. A launcher that is killed cannot stop its processes.

    Otherwise this process would write to the same files as the next run.
    """
    launchers = ({"TORCHELASTIC_RUN_ID"}, {"ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION"})  # set by launchers
    if not any(names <= set(os.environ) for names in launchers):
        return
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(polling_interval)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
