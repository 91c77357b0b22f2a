"""Shared code of the command lines."""

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, NoReturn

from .compressed_files import is_standard_stream
from .errors import printable

MODEL_TYPE = "random_transformer"
SEPARATOR = "\0"  # of folders in one argument; no path contains it

_program: ContextVar[str | None] = ContextVar("program", default=None)


@contextmanager
def program_name(name: str) -> Iterator[None]:
    """Replace the name of the script in usage and errors, for example with `random-transformer train`."""
    token = _program.set(name)
    try:
        yield
    finally:
        _program.reset(token)


def current_program(script: str) -> str:
    """The name that `program_name` has set; by default, the name of the script."""
    return _program.get() or script


class Parser(argparse.ArgumentParser):
    """An argument parser whose errors are one line, without the usage."""

    def __init__(self, script: str, description: str | None):
        raw = argparse.RawDescriptionHelpFormatter
        super().__init__(prog=current_program(script), description=description, formatter_class=raw, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        print_error(self.prog, message)
        sys.exit(2)


def raise_on_sigterm() -> None:
    """Raise `SystemExit` with status 143 on SIGTERM, so that `with` and `try` blocks remove partial output.

    By default, SIGTERM ends the process without running them.
    """

    def stop(number: int, _: Any) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a second signal would interrupt the cleanup
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)


def run_script(main: Callable[[], int]) -> NoReturn:
    """Call `main` and exit with its status, with 130 after SIGINT (Ctrl-C) and 143 after SIGTERM."""
    raise_on_sigterm()
    try:
        status = main()
    except KeyboardInterrupt:
        status = 128 + signal.SIGINT
    sys.exit(status)


def print_error(script: str, message: str) -> None:
    """Print an error in the format of argparse on stderr."""
    print(f"{current_program(script)}: error: {printable(message)}", file=sys.stderr)


def format_error(error: Exception) -> str:
    """The error's message in one line, with the path for an error of the operating system."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{error.filename}: {error.strerror}."
    return " ".join(str(error).split("\n"))


def exit_status(script: str, run: Callable[[], None]) -> int:
    """Run a command and print its error.

    Returns:
        0 on success; 1 if weights or losses are not finite; 2 for an invalid input; 130 after Ctrl-C.
    """
    try:
        run()
    except BrokenPipeError:  # the reader, such as `head`, has exited
        discard_stdout()
        return 0
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    except FloatingPointError as error:
        print_error(script, str(error))
        return 1
    except (ValueError, OSError) as error:
        print_error(script, format_error(error))
        return 2
    return 0


def write_to_stdout(lines: Iterable[bytes]) -> None:
    """Write each line to standard output as soon as it is available."""
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


def join_folders(argv: Sequence[str] | None, option: str) -> list[str]:
    """Join `option A B` to one argument, for the type `model_folders`, if B is an existing folder.

    An option of argparse with `nargs="+"` would also take the positional arguments that follow.
    """
    arguments: list[str] = []
    is_value = False
    for argument in sys.argv[1:] if argv is None else argv:
        if is_value and Path(argument).is_dir():
            arguments[-1] += SEPARATOR + argument
        else:
            is_value = arguments[-1:] == [option] or argument.startswith(f"{option}=")
            arguments.append(argument)
    return arguments


def model_folders(text: str) -> list[Path]:
    """Argument type: one or more folders for `model_folder`, joined by `join_folders`."""
    return [model_folder(folder) for folder in text.split(SEPARATOR)]


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
    folder = model_folder(text)
    if not (folder / "config.json").is_file():
        raise argparse.ArgumentTypeError(
            f"must contain a full model, got {text!r} with an adapter: merge it first (docs/how_to/fine_tune.md)."
        )
    check_model_type(folder)
    return folder


def configuration_folder(text: str) -> Path:
    """Argument type: a folder with the configuration of a Random Transformer."""
    folder = Path(text)
    if not (folder / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"must be a folder with a config.json, got {text!r}.")
    check_model_type(folder)
    return folder


def check_model_type(folder: Path) -> None:
    """Raise an ArgumentTypeError if the folder's config.json belongs to another model or cannot be read."""
    try:
        model_type = json.loads((folder / "config.json").read_bytes()).get("model_type")
    except (ValueError, AttributeError, RecursionError) as error:
        raise argparse.ArgumentTypeError(
            f"must contain a config.json that can be read, got {str(folder)!r}: {error}."
        ) from error
    if model_type != MODEL_TYPE:
        raise argparse.ArgumentTypeError(
            f"must contain a model of type {MODEL_TYPE!r}, got {str(folder)!r} of type {model_type!r}."
        )
