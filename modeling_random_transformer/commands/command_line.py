"""What the commands share: the parser, arguments, exit statuses and standard output."""

import argparse
import inspect
import os
import re
import signal
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields
from itertools import takewhile
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn, TypeVar, get_args, get_type_hints

from transformers import HfArgumentParser

from ..base import DTYPES, ENGINES, read_json
from ..base.compressed_files import STANDARD_STREAM, is_readable, is_standard_stream, is_stream, write_binary
from ..base.distributed import start_processes
from ..base.errors import printable
from ..configuration_random_transformer import RandomTransformerConfig, did_you_mean
from ..inputs_random_transformer import CHUNK_SIZE, drop_none

T = TypeVar("T")
ARGUMENT = re.compile(r"^    (\w+): (.*?)(?=^    [\w*]+: |^\S|\Z)", re.M | re.S)  # its entry in a docstring


class Several(argparse.Action):
    """Stores the values of a flag. argparse would silently keep those of the last one, if it is repeated."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if getattr(namespace, self.dest) is not self.default:
            parser.error(f"{option_string} must be given once, with all of its values, got {values} in a second one.")
        setattr(namespace, self.dest, values)


class Parser(HfArgumentParser):
    """A parser whose errors are one line, whose help shows defaults, and whose options may be dataclasses.

    Args:
        program: the name in usage and errors.
        description: the help of the command, with its line breaks.
        options: dataclasses, such as `DataArguments`, for `parse_args_into_dataclasses`.
        hidden: names of arguments that are not in the help.
    """

    def __init__(self, program: str, description: str | None = None, options: Any = (), hidden: Collection[str] = ()):
        self.hidden = hidden  # before arguments are added
        settings = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(options, prog=program, description=description, **settings)

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        text, is_shown = settings.get("help"), settings.get("default") not in (None, False, "", [], argparse.SUPPRESS)
        if text and is_shown and not re.search(r"\((the )?default", text):
            settings["help"] = f"{text} (default: %(default)s)"
        if names[0].lstrip("-").removeprefix("no_") in self.hidden:
            settings["help"] = argparse.SUPPRESS
        settings |= {"action": Several} if settings.get("nargs") == "+" and "action" not in settings else {}
        return super().add_argument(*names, **settings)

    def add_options(self, options: type) -> None:
        """Add an argument for each field of a dataclass, with its default and, as help, its entry in the docstring.

        The metadata of a field are arguments of `add_argument`, or `positional`. An integer must be positive, unless
        the metadata has another type. A field that may be `None` accepts `off`, unless `None` is its default.
        """
        helps, hints = help_texts(*reversed(options.__mro__[:-1])), get_type_hints(options)
        for option in fields(options):
            allowed = get_args(hints[option.name]) or (hints[option.name],)
            [kind] = [each for each in allowed if each is not NoneType]
            settings, text = dict(option.metadata), helps[option.name]
            positional, required = settings.pop("positional", False), option.default is MISSING
            default = None if required else option.default
            if kind is bool:
                settings["action"] = "store_true"
            elif "choices" not in settings:
                if get_args(kind):
                    [kind] = get_args(kind)
                    settings.setdefault("nargs", "+")
                parse, metavar = TYPES[kind]
                settings = {"type": parse, "metavar": metavar, **settings}
                if NoneType in allowed and default is not None:
                    settings["type"], text = off_or(settings["type"]), text.replace("None", "off")
            if not positional:
                settings["required"] = required
            self.add_argument(option.name if positional else f"--{option.name}", default=default, help=text, **settings)

    def parse(self, options: type[T], argv: Sequence[str] | None) -> T:
        """Parse the arguments that are the fields of a dataclass; invalid arguments exit with status 2.

        Raises:
            ValueError: arguments contradict each other.
        """
        self.add_options(options)
        return options(**vars(self.parse_intermixed_args(argv)))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse the arguments of all ways to call the parser; a flag that does not exist is the first error."""
        args = sys.argv[1:] if args is None else [*args]
        flags = {flag for action in self._actions for flag in action.option_strings}  # also those of groups
        for argument in takewhile(lambda argument: argument != "--", args):
            name = argument.partition("=")[0]
            if name.startswith("--") and " " not in name and name not in flags:
                self.error(f"arguments must be among those of --help, got {name}.{did_you_mean(name, flags)}")
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        print_error(self.prog, message)
        sys.exit(2)


def help_texts(*documented: Any) -> dict[str, str]:
    """The entries of arguments in the docstrings of functions or dataclasses."""
    texts: dict[str, str] = {}
    for each in documented:
        for name, text in ARGUMENT.findall(inspect.cleandoc(each.__doc__ or "")):
            texts[name] = " ".join(text.split()).rstrip(".").replace("`", "").replace("%", "%%")
    return texts


# Exit statuses

INTERRUPTED = "interrupted; the same command resumes the run."


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


def check_new_outputs(overwrite: bool, **outputs: Path | None) -> None:
    """Check that a command does not replace a file that it did not write, such as the references of a test set.

    Args:
        overwrite: whether outputs may be replaced.
        **outputs: files by the names of their arguments.

    Raises:
        ValueError: an output exists and is not empty, and no interrupted job resumes.
    """
    files = {name: path for name, path in outputs.items() if path is not None and not is_stream(path)}
    job_folders = [Path(f"{path}{suffix}") for path in files.values() for suffix in (".parts", ".work")]
    if overwrite or any(folder.is_dir() for folder in job_folders):
        return
    for name, path in files.items():
        if path.is_file() and path.stat().st_size:
            raise ValueError(f"--{name} must be a new file without --overwrite, got {str(path)!r}, which exists.")


def write_output(path: Path, lines: Iterable[bytes]) -> None:
    """Write lines to the value of --output: to a file, atomically, or each at once to standard output."""
    if not is_standard_stream(path):
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
    """Argument type: an existing file, which may be a pipe, or `-`."""
    if not is_readable(text):
        raise argparse.ArgumentTypeError(f"must be a file that exists, got {text!r}.")
    return Path(text)


def positive_integer(text: str) -> int:
    """Argument type."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}.")
    return int(text)


def off_or(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Argument type: the values of another type, or `None` for `off`."""

    def parse_or_off(text: str) -> Any:
        try:
            return None if text == "off" else parse(text)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise argparse.ArgumentTypeError(f"must be a number or 'off', got {text!r}.") from error

    return parse_or_off


def model_folder(text: str) -> Path:
    """Argument type: a folder with a saved Random Transformer, or with its configuration."""
    try:
        found = read_json(Path(text, "config.json")).get("model_type")
    except ValueError as error:
        is_adapter = Path(text, "adapter_config.json").is_file()
        hint = " It contains an adapter: merge it first (docs/how_to/fine_tune.md)." if is_adapter else ""
        raise argparse.ArgumentTypeError(f"must contain a saved model, got {text!r}: {error}{hint}") from error
    if found != (expected := RandomTransformerConfig.model_type):
        raise argparse.ArgumentTypeError(f"must contain a model of type {expected!r}, got {text!r} of type {found!r}.")
    return Path(text)


STANDARD = Path(STANDARD_STREAM)
# How each type of a field is parsed, and its name in the help
TYPES: dict[type, tuple[Callable[[str], Any], str]] = {
    int: (positive_integer, "N"),
    float: (float, "X"),
    str: (str, "TEXT"),
    Path: (Path, "FILE"),
}


# Commands that pass texts through a model

MODEL = {"action": "append", "type": Path, "metavar": "FOLDER"}  # how --model is parsed


@dataclass(frozen=True, kw_only=True)
class InferenceArguments:
    """Arguments of commands that pass texts through a model.

    Args:
        model: a saved model and its tokenizer; repeated for an ensemble, which averages log-probabilities
        source_lang: source language, for a model of several
        target_lang: target language, for a model of several
        max_tokens_per_batch: batch size: texts × beams × tokens of the longest text, or of the longest source and
            target; increase it on a GPU
        chunk_size: texts that are sorted by length together; an interruption loses at most one chunk per process
        dtype: dtype of the weights, auto for the saved one; int8 also quantizes activations, for speed on a CPU
        device: device, such as cpu or cuda:1 (default: an accelerator if available)
        restart: discard the work of an interrupted run with the same output
    """

    model: list[Path] = field(metadata=MODEL)
    source_lang: str | None = None
    target_lang: str | None = None
    max_tokens_per_batch: int = 4096
    chunk_size: int = CHUNK_SIZE
    dtype: str = field(default="auto", metadata={"choices": ("auto", *DTYPES)})
    device: str | None = None
    restart: bool = False

    @property
    def text_options(self) -> dict[str, Any]:
        """The options of `translate` and `score_pairs` that are arguments of all of these commands."""
        languages = drop_none(src_lang=self.source_lang, tgt_lang=self.target_lang)
        return {"max_batch_tokens": self.max_tokens_per_batch, **languages}

    @contextmanager
    def load(self, from_file_to_file: bool = True, **engine_options: Any) -> Iterator[tuple[Any, Any]]:
        """The model and its tokenizer in this process, which has left the group of processes at the end.

        Args:
            from_file_to_file: the input and the output are files.
            **engine_options: see `load_models`.

        Raises:
            ValueError: there are several processes, which share files only; or see `load_models`.
        """
        from ..inference.loading import load_models  # takes seconds to import

        state = start_processes(self.device)
        if state.num_processes > 1 and not from_file_to_file:
            raise ValueError(f"the input and --output must be files with {state.num_processes} processes.")
        yield load_models(self.model, self.dtype, self.device or state.device, "--model", **engine_options)
        state.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class EngineArguments:
    """Arguments of commands that translate by an inference engine.

    Args:
        device: device, such as cpu or cuda:1 (default: an accelerator if available)
        engine: inference engine for CPUs, which computes what it supports; the model is exported to it when it is
            first used
        engine_dtype: dtype of the engine's weights (default: the fastest, int8)
        engine_folder: folder of exported models (default: engines in the folder of the model)
        engine_shortlist: vmap.txt of an export with a shortlist, for speed

    Raises:
        ValueError: arguments contradict each other.
    """

    device: str | None = None
    engine: str | None = field(default=None, metadata={"choices": tuple(ENGINES)})
    engine_dtype: str | None = field(default=None, metadata={"choices": DTYPES})
    engine_folder: Path | None = field(default=None, metadata={"metavar": "FOLDER"})
    engine_shortlist: Path | None = field(default=None, metadata={"type": existing_file})

    def __post_init__(self) -> None:
        if self.engine is not None and self.device not in (None, "cpu"):
            raise ValueError(f"--device must be cpu with --engine, got {self.device}.")
        if self.engine is None and any(self.engine_options.values()):
            raise ValueError("--engine must be given with --engine_dtype, _folder and _shortlist, got None.")
        if self.engine is not None:
            object.__setattr__(self, "device", "cpu")

    @property
    def engine_options(self) -> dict[str, Any]:
        """The arguments of `load_models`."""
        return {name: value for name, value in vars(self).items() if name.startswith("engine")}
