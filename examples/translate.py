"""Translate sentences, a file, or what comes on stdin, with a model saved in a folder.

    python examples/translate.py --model outputs/quickstart "the boy sees the girl" "we read two books"
    python examples/translate.py --model outputs/quickstart                       # a line at a time, as you type
    python examples/translate.py --model outputs/quickstart < test.en > test.es
    python examples/translate.py --model outputs/quickstart --input test.en --output test.es
    accelerate launch --multi_gpu --num_processes 8 examples/translate.py --model outputs/quickstart \\
        --input big.en --output big.es

Line n of the output translates line n of the input. With --input and --output the same command goes on where it was
stopped or killed, and `accelerate launch` splits the file over the processes (on a machine without accelerators too,
with --multi_gpu all the same: its --cpu starts one process only).
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from modeling_random_transformer.utils.command_line import (
    Parser,
    check_finite,
    format_error,
    model_folder,
    print_error,
    run_script,
)

# torch and transformers are imported when the arguments are known to be good: that takes seconds.

SCRIPT = "translate.py"


def main(argv: list[str] | None = None) -> int:
    """Translate as the command line says.

    Returns:
        The exit status: 0; 1 for a model whose weights are not finite; 2 for an argument, a file or a text that cannot
        be used; 130 after Ctrl-C.
    """
    end_with_launcher()
    arguments = parse_arguments(argv)
    try:
        run(arguments)
    except BrokenPipeError:
        return 0  # the reader, such as `head`, has closed its end
    except KeyboardInterrupt:
        return 130
    except FloatingPointError as error:
        print_error(SCRIPT, str(error))
        return 1
    except (ValueError, OSError) as error:
        print_error(SCRIPT, format_error(error))
        return 2
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(SCRIPT, __doc__)
    parser.add_argument("sentences", nargs="*", metavar="sentence", help="what to translate, instead of a file")
    parser.add_argument(
        "--model", required=True, type=model_folder, metavar="FOLDER", help="a saved model and tokenizer"
    )
    parser.add_argument("--input", type=input_file, metavar="FILE", help="UTF-8, a text a line (default: stdin)")
    parser.add_argument("--output", type=output_file, metavar="FILE", help="where to write (default: stdout)")
    parser.add_argument("--num_beams", type=positive_integer, metavar="N", help="default: 4, or 1 with --sample")
    parser.add_argument(
        "--length_penalty", type=float, default=0.6, metavar="X", help="more: longer (default: %(default)s)"
    )
    parser.add_argument("--sample", action="store_true", help="draw words from the model's distribution")
    parser.add_argument("--temperature", type=positive_number, metavar="X", help="of --sample (default: 1)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of --sample (default: %(default)s)")
    parser.add_argument(
        "--max_batch_tokens",
        type=positive_integer,
        default=4096,
        metavar="N",
        help="size of a batch: texts × beams × tokens of the longest (default: %(default)s; more on a GPU)",
    )
    parser.add_argument(
        "--max_source_tokens",
        type=positive_integer,
        metavar="N",
        help="cut longer texts (default: a text longer than the tokenizer's or the model's limit is an error)",
    )
    parser.add_argument(
        "--chunk_size",
        type=positive_integer,
        default=1000,
        metavar="N",
        help="lines read and sorted by length at a time, and lost at the most by a kill (default: %(default)s)",
    )
    parser.add_argument("--dtype", choices=("auto", "float32", "bfloat16"), default="auto", help="auto: as saved")
    parser.add_argument(
        "--device", metavar="NAME", help="such as cpu or cuda:1 (default: an accelerator if there is one)"
    )
    parser.add_argument("--restart", action="store_true", help="do not resume an earlier run with the same --output")
    arguments = parser.parse_intermixed_args(argv)
    check_combinations(arguments, parser)
    return arguments


def check_combinations(arguments: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    source, output = arguments.input, arguments.output
    if arguments.sentences and source:
        parser.error(f"sentences and --input must not be given together, got {arguments.sentences} and {source}.")
    if arguments.temperature is not None and not arguments.sample:
        parser.error(f"--temperature must be given with --sample, got {arguments.temperature} without.")
    if source and output and output.exists() and output.samefile(source):
        parser.error(f"--output must differ from --input, got {output} for both.")


def input_file(text: str) -> Path:
    if not Path(text).exists() or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"must be a file that exists, got {text!r}.")
    return Path(text)


def output_file(text: str) -> Path:
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"must lie in a folder that exists, got {text!r}.")
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(f"must be a file, new or not, got {text!r}.")
    return path


def positive_integer(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}.")
    return int(text)


def positive_number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}.")
    return number


def run(arguments: argparse.Namespace) -> None:
    import torch
    from accelerate import PartialState
    from accelerate.utils import parse_flag_from_env

    from modeling_random_transformer.translation import translate_file

    on_cpu = arguments.device == "cpu" or parse_flag_from_env("ACCELERATE_USE_CPU")
    state = PartialState(cpu=on_cpu or not torch.accelerator.is_available())
    from_file_to_file = bool(arguments.output and arguments.input and arguments.input.is_file())
    if state.num_processes > 1 and not from_file_to_file:
        raise ValueError(f"--input and --output must both be files to be shared by {state.num_processes} processes.")
    model, tokenizer = load(arguments.model, arguments.dtype, arguments.device or state.device)
    check_finite(model)
    limit_sources(model, tokenizer)
    options = translation_options(arguments)
    if from_file_to_file:
        translate_file(arguments.input, arguments.output, model, tokenizer, restart=arguments.restart, **options)
    else:
        translate_as_it_comes(arguments, model, tokenizer, options)
    state.destroy_process_group()


def load(folder: Path, dtype: str, device: Any) -> tuple[Any, Any]:
    """The model, on its device, and its tokenizer."""
    import torch

    from modeling_random_transformer.translation.loading import load_model_and_tokenizer
    from modeling_random_transformer.utils.errors import first_line

    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # what torch raises depends on what it was built with
        raise ValueError(f"--device must be a device of this machine, got {device}: {first_line(error)}") from error
    try:
        model, tokenizer = load_model_and_tokenizer(folder, dtype)
    except ValueError as error:
        raise ValueError(
            f"--model must hold a sequence-to-sequence model and its tokenizer, got {described(folder)}: {error}"
        ) from error
    return model.to(device), tokenizer


def described(folder: Path) -> str:
    """The folder, and of an adapter the model that it is for, which may be what cannot be loaded."""
    try:
        base = json.loads((folder / "adapter_config.json").read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return str(folder)
    return f"{folder}, an adapter for {base}"


def limit_sources(model: Any, tokenizer: Any) -> None:
    """Give a tokenizer that has no limit the model's, so that a line of a megabyte is an error, not hours of work."""
    from transformers.tokenization_utils_base import LARGE_INTEGER

    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and tokenizer.model_max_length > LARGE_INTEGER:
        tokenizer.model_max_length = positions


def translation_options(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options of `translate` and of `generate()`."""
    names = ("length_penalty", "max_batch_tokens", "max_source_tokens", "chunk_size")
    options = {name: getattr(arguments, name) for name in names}
    options["num_beams"] = arguments.num_beams or (1 if arguments.sample else 4)
    if arguments.sample:
        # top_k=0: from all words, not from the library's best 50.
        options |= {"do_sample": True, "top_k": 0, "temperature": arguments.temperature or 1.0, "seed": arguments.seed}
    return options


def translate_as_it_comes(arguments: argparse.Namespace, model: Any, tokenizer: Any, options: dict[str, Any]) -> None:
    """Sentences, stdin or a file, to stdout or a file; a line at a time for someone who types them."""
    from modeling_random_transformer.translation import encode_lines, translate_stream
    from modeling_random_transformer.utils.files import write_atomically

    if not arguments.sentences and not arguments.input and sys.stdin.isatty():
        print("Type a line to translate it; end with Ctrl-D.", file=sys.stderr)
        options = {**options, "chunk_size": 1, "progress": False}
    with texts_of(arguments) as texts:
        lines = encode_lines(translate_stream(texts, model, tokenizer, **options))
        if arguments.output:
            write_atomically(arguments.output, lines)
        else:
            show(lines)


def show(lines: Iterable[bytes]) -> None:
    """Write to stdout, at once what there is."""
    for line in lines:
        try:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        except OSError as error:
            # What is still buffered must not be flushed to a full disk or a closed pipe when the process exits.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise OSError(error.errno, error.strerror, "stdout") from error


@contextmanager
def texts_of(arguments: argparse.Namespace) -> Iterator[Iterable[str]]:
    from modeling_random_transformer.translation import read_lines

    if arguments.sentences:
        yield arguments.sentences
    elif arguments.input:
        with open(arguments.input, "rb") as file:
            yield read_lines(file, str(arguments.input))
    else:
        yield read_lines(sys.stdin.buffer, "stdin")


def end_with_launcher(seconds_between_looks: float = 0.2) -> None:
    """Have this process end when the launcher that started it has gone, which cannot see to that if it is killed.

    Otherwise the process would go on for itself, and write what those of the next run write.
    """
    launchers = ({"TORCHELASTIC_RUN_ID"}, {"ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION"})  # what they set
    if not any(names <= set(os.environ) for names in launchers):
        return
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(seconds_between_looks)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


if __name__ == "__main__":
    run_script(main)
