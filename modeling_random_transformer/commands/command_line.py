"""What the commands share: the parser, types of arguments, flags, exit statuses and standard output."""

import argparse
import inspect
import json
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, get_args, get_type_hints

from transformers import HfArgumentParser

from ..configuration_random_transformer import RandomTransformerConfig
from ..utils import DTYPES
from ..utils.compressed_files import is_standard_stream, write_binary
from ..utils.errors import printable


class Parser(HfArgumentParser):
    """A parser whose errors are one line, whose help shows defaults, and whose options may be dataclasses.

    Args:
        program: the name in usage and errors.
        description: the help of the command, with its line breaks.
        options: dataclasses, such as `DataArguments`, for `parse_args_into_dataclasses`.
    """

    def __init__(self, program: str | None = None, description: str | None = None, options: Any = (), **settings: Any):
        settings = {"prog": program, "description": description} | settings
        super().__init__(options, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        text, default = settings.get("help"), settings.get("default")
        if (
            text
            and not re.search(r"\((the )?default", text)
            and default not in (None, False, "", [], argparse.SUPPRESS)
        ):
            settings["help"] = f"{text} (default: %(default)s)"
        return super().add_argument(*names, **settings)

    def add_options(self, options: type) -> None:
        """Add a flag for each field of a dataclass, with its default and, as help, its entry in the docstring.

        A field that may be `None` accepts `off`, unless `None` is its default.
        """
        helps = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |^\S|\Z)", inspect.getdoc(options) or "", re.M | re.S)
        texts = {name: " ".join(text.split()).replace("`", "").replace("%", "%%") for name, text in helps}
        hints = get_type_hints(options)
        for field in fields(options):
            kinds = [kind for kind in get_args(hints[field.name]) or (hints[field.name],) if kind is not NoneType]
            is_list = bool(get_args(kinds[0]))
            settings: dict[str, Any] = {"nargs": "+"} if is_list else {"type": kinds[0]}
            text = texts[field.name]
            if not is_list and NoneType in get_args(hints[field.name]) and field.default is not None:
                settings, text = {"type": off_or(kinds[0])}, text.replace("None", "off")
            self.add_argument(f"--{field.name}", default=field.default, help=text, metavar="X", **settings)

    def error(self, message: str) -> NoReturn:
        print_error(self.prog, message)
        sys.exit(2)


# Exit statuses


def run_command(main: Callable[[], int | None], program: str, hint: str = "") -> int:
    """Run a command and turn its errors into an exit status, and a line on stderr.

    Args:
        main: the command; it may return a status of its own.
        program: the name in errors.
        hint: what an interrupted run prints, if anything.

    Returns:
        0 on success, or if the reader of standard output has exited; 1 if the result is not valid, such as weights or
        a loss that are not finite; 2 if an argument, a file or a text is invalid; 130 after Ctrl-C.
    """
    try:
        return main() or 0
    except BrokenPipeError:  # the reader, such as `head`, has exited
        discard_stdout()
        return 0
    except KeyboardInterrupt:
        if hint:
            print_error(program, hint)
        return 128 + signal.SIGINT
    except (FloatingPointError, ValueError, OSError) as error:
        print_error(program, format_error(error))
        return 1 if isinstance(error, FloatingPointError) else 2


def run_script(main: Callable[[], int]) -> NoReturn:
    """Call `main` and exit with its status, with 130 after SIGINT (Ctrl-C) and 143 after SIGTERM."""
    raise_on_sigterm()
    try:
        status = main()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)


def raise_on_sigterm() -> None:
    """Raise `SystemExit` with status 143 on SIGTERM, so that `with` and `try` blocks remove partial output.

    By default, SIGTERM ends the process without running them.
    """

    def stop(number: int, _: Any) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second signal would interrupt the cleanup
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)


def print_error(program: str, message: str) -> None:
    """Print an error in the format of argparse on stderr."""
    print(f"{program}: error: {printable(message)}", file=sys.stderr)


def format_error(error: Exception) -> str:
    """The error's message in one line, with the path for an error of the operating system."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}."
    return " ".join(str(error).split("\n"))


# Output


def write_output(path: Path | None, lines: Iterable[bytes]) -> None:
    """Write lines to the value of --output: to a file, atomically, or each at once to standard output."""
    if path is not None:
        write_binary(path, lines)
        return
    for line in lines:
        try:
            sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
        except OSError as error:
            discard_stdout()
            raise OSError(error.errno, error.strerror, "stdout") from error


def discard_stdout() -> None:
    """Discard what is written to standard output; prevents an error at exit, when Python flushes the buffer again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Types of arguments


def existing_file(text: str) -> Path:
    """Argument type: an existing file, which may be a pipe."""
    if not Path(text).exists() or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"must be a file that exists, got {text!r}.")
    return Path(text)


def existing_file_or_stdin(text: str) -> Path:
    """Argument type: an existing file, which may be a pipe, or `-`."""
    return Path(text) if is_standard_stream(text) else existing_file(text)


def output_file(text: str) -> Path:
    """Argument type: a new or an existing regular file."""
    path = Path(text)
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"must be in a folder that exists, got {text!r}.")
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(f"must be a file, new or not, got {text!r}.")
    return path


def output_file_or_stdout(text: str) -> Path | None:
    """Argument type: a file to write, or `None` for standard output."""
    return None if is_standard_stream(text) else output_file(text)


def positive_integer(text: str) -> int:
    """Argument type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}.")
    return int(text)


def positive_number(text: str) -> float:
    """Argument type."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, got {text!r}.")
    return number


def off_or(number: Callable[[str], Any]) -> Callable[[str], Any]:
    """Argument type: a number, or `None` for `off`."""

    def parse(text: str) -> Any:
        try:
            return None if text == "off" else number(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"must be a number or 'off', got {text!r}.") from error

    return parse


def model_folder(text: str) -> Path:
    """Argument type: a folder with a saved model, or an adapter for one, and a tokenizer."""
    folder = Path(text)
    for names in (("config.json", "adapter_config.json"), ("tokenizer_config.json",)):
        if not any((folder / name).is_file() for name in names):
            raise argparse.ArgumentTypeError(
                f"must be a folder with a saved model and its tokenizer, got {text!r} without {names[0]}."
            )
    return folder


def require_random_transformer_folder(text: str) -> Path:
    """Argument type: a folder with a saved Random Transformer and its tokenizer."""
    if not (model_folder(text) / "config.json").is_file():
        raise argparse.ArgumentTypeError(
            f"must contain a full model, got {text!r} with an adapter: merge it first (docs/how_to/fine_tune.md)."
        )
    return configuration_folder(text)


def configuration_folder(text: str) -> Path:
    """Argument type: a folder with the configuration of a Random Transformer."""
    file = Path(text) / "config.json"
    if not file.is_file():
        raise argparse.ArgumentTypeError(f"must be a folder with a config.json, got {text!r}.")
    try:
        found = json.loads(file.read_bytes()).get("model_type")
    except (ValueError, AttributeError, RecursionError) as error:
        raise argparse.ArgumentTypeError(
            f"must contain a config.json that can be read, got {text!r}: {error}."
        ) from error
    if found != RandomTransformerConfig.model_type:
        raise argparse.ArgumentTypeError(
            f"must contain a model of type {RandomTransformerConfig.model_type!r}, got {text!r} of type {found!r}."
        )
    return Path(text)


# Arguments of several commands. The destinations are the names of the Python parameters.


def add_model_argument(parser: argparse.ArgumentParser) -> None:
    """Add --model."""
    parser.add_argument(
        "--model",
        required=True,
        action="append",
        type=model_folder,
        metavar="FOLDER",
        help="a saved model and its tokenizer; repeated for an ensemble, which averages log-probabilities",
    )


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    """Add --output."""
    parser.add_argument(
        "--output",
        type=output_file_or_stdout,
        metavar="FILE",
        help="file to write, compressed if its name ends with .gz or .zst; - is standard output (the default)",
    )


def add_key_arguments(parser: argparse.ArgumentParser, sides: Iterable[str], file: str) -> None:
    """Add the columns of a file with both sides, such as --source_key."""
    for side in sides:
        help_ = f"column of the {side} in {file}: a name, or a number from 1"
        parser.add_argument(f"--{side}_key", default=side, metavar="KEY", help=help_)


def add_language_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --source_lang and --target_lang."""
    for side, name in (("source", "src_lang"), ("target", "tgt_lang")):
        help_ = f"{side} language, for a model of several"
        parser.add_argument(f"--{side}_lang", dest=name, metavar="CODE", help=help_)


def add_job_arguments(parser: argparse.ArgumentParser, size: str, unit: str) -> None:
    """Add --max_tokens_per_batch, --chunk_size, --dtype, --device and --restart.

    Args:
        parser: the parser.
        size: what the size of a batch is, for the help.
        unit: what is sorted by length, for the help.
    """
    parser.add_argument(
        "--max_tokens_per_batch",
        dest="max_batch_tokens",
        type=positive_integer,
        default=4096,
        metavar="N",
        help=f"batch size: {size}; increase it on a GPU",
    )
    parser.add_argument(
        "--chunk_size",
        type=positive_integer,
        default=1000,
        metavar="N",
        help=f"{unit} that are sorted by length together; an interruption loses at most one chunk per process",
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", *DTYPES),
        default="auto",
        help="dtype of the weights, auto for the saved one; int8 also quantizes activations, for speed on a CPU",
    )
    parser.add_argument(
        "--device", metavar="NAME", help="device, such as cpu or cuda:1 (default: an accelerator if available)"
    )
    parser.add_argument(
        "--restart", action="store_true", help="discard the work of an interrupted run with the same output"
    )


def check_differs_from_output(parser: argparse.ArgumentParser, output: Path | None, **inputs: Path | None) -> None:
    """Exit with an error if the output is one of the inputs."""
    for name, path in inputs.items():
        if path and output and output.exists() and output.samefile(path):
            parser.error(f"--output must differ from --{name}, got {output} for both.")


def given(arguments: argparse.Namespace, names: Sequence[str]) -> dict[str, Any]:
    """The arguments with these names that are not `None`."""
    return {name: value for name in names if (value := getattr(arguments, name)) is not None}
