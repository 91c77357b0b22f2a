"""What the commands share: processes, errors, standard output, types of arguments, and arguments."""

import argparse
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from accelerate import PartialState
from accelerate.utils import parse_flag_from_env
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME

from ..base import DTYPES, ENGINES
from ..base.compressed_files import write_binary
from ..base.errors import printable
from ..base.files import PARTS_SUFFIX, STAGES_SUFFIX, read_json, work_folder
from ..base.flags import MAX_SEED
from ..base.saved_files import check_not_exported
from ..base.streams import STANDARD_STREAM, is_standard_stream, is_stream
from ..configuration_random_transformer import RandomTransformerConfig
from ..data.readers import Columns
from ..extras.parser import InputFile
from ..inputs_random_transformer import CHUNK_SIZE, drop_none

# Processes and errors

PROGRAM = "random-transformer"
LAUNCHER_POLLING_INTERVAL = 0.2  # seconds
INTERRUPTED = "interrupted; the same command resumes the run."


@contextmanager
def resumable() -> Iterator[None]:
    """Let an interruption print that the same command resumes the run."""
    try:
        yield
    except KeyboardInterrupt as interruption:
        raise KeyboardInterrupt(INTERRUPTED) from interruption


def initialize_process(device: str | None) -> Any:
    """Accelerate's state of this process, on the device of `--device` or on an accelerator if there is one.

    A process of a launcher exits when its launcher has died.
    """
    launchers = ({"TORCHELASTIC_RUN_ID"}, {"ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION"})  # set by launchers
    if any(names <= set(os.environ) for names in launchers):
        threading.Thread(target=exit_with_launcher, args=[os.getppid()], daemon=True).start()
    on_cpu = device == "cpu" or parse_flag_from_env("ACCELERATE_USE_CPU")
    return PartialState(cpu=on_cpu or not torch.accelerator.is_available())


def exit_with_launcher(launcher: int) -> None:
    """Exit when the launcher of this process, which has this id, has died.

    A launcher that is killed cannot stop its processes, which would write to the same files as the next run.
    """
    while os.getppid() == launcher:
        time.sleep(LAUNCHER_POLLING_INTERVAL)
    os._exit(1)


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


# Output


def check_new_outputs(overwrite: bool, **outputs: Path | None) -> None:
    """Check that a command does not replace a file that it did not write, such as the references of a test set.

    Args:
        overwrite: whether outputs may be replaced.
        **outputs: files by the names of their arguments.

    Raises:
        ValueError: an output exists and is not empty, and no interrupted job resumes.
    """
    files = {name: path for name, path in drop_none(**outputs).items() if not is_stream(path)}
    work_folders = [work_folder(path, suffix) for path in files.values() for suffix in (PARTS_SUFFIX, STAGES_SUFFIX)]
    if overwrite or any(folder.is_dir() for folder in work_folders):
        return
    for name, path in files.items():
        if path.is_file() and path.stat().st_size:
            raise ValueError(f"--{name} must be a new file without --overwrite, got {str(path)!r}, which exists.")


def check_keys(has_columns: bool, *keys: str) -> None:
    """Raise a `ValueError` if keys of columns are given, but all files have one text per line, and so no columns."""
    if not has_columns and not Columns(keys).are_default:
        raise ValueError(
            f"--source_key and --target_key must be unset with --target_file, got {' and '.join(keys)}: files with one "
            "text per line have no columns."
        )


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


def write_page(path: Path, page: str) -> None:
    """Write an HTML page to the value of --output, and print the size of a file."""
    content = page.encode()
    write_output(path, [content])
    if not is_stream(path):
        print(f"Wrote {path} ({len(content) / 1e3:,.0f} kB). Open it in a browser.")


def discard_stdout() -> None:
    """Discard what is written to standard output; prevents an error at exit, when Python flushes the buffer again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# Arguments

STANDARD_PATH = InputFile(Path(STANDARD_STREAM))


def model_folder(text: str) -> Path:
    """Argument type: a folder with a saved Random Transformer, or with its configuration."""
    try:
        check_not_exported(Path(text))
        model_type = read_json(Path(text, CONFIG_NAME)).get("model_type")
    except ValueError as error:
        is_adapter = Path(text, ADAPTER_CONFIG_NAME).is_file()
        hint = " It contains an adapter: merge it first (docs/how_to/fine_tune.md)." if is_adapter else ""
        raise argparse.ArgumentTypeError(f"must contain a saved model, got {text!r}: {error}{hint}") from error
    expected = RandomTransformerConfig.model_type
    if model_type != expected:
        raise argparse.ArgumentTypeError(
            f"must contain a model of type {expected!r}, got {text!r} of type {model_type!r}."
        )
    return Path(text)


def random_seed(text: str) -> int:
    """Argument type: the seeds of all random number generators, also NumPy's."""
    if not text.isdecimal() or int(text) > MAX_SEED:
        raise argparse.ArgumentTypeError(f"must be an integer from 0 to {MAX_SEED}, got {text!r}.")
    return int(text)


def check_one_stream(**inputs: Path | None) -> None:
    """Raise a `ValueError` if several arguments are standard input, which is read once."""
    names = [name for name, path in inputs.items() if path is not None and is_standard_stream(path)]
    if len(names) > 1:
        raise ValueError(f"one argument at most must be - (standard input), got {' and '.join(names)}.")


# Commands that pass texts through a model

MODEL_FLAG = {"action": "append", "type": Path, "nargs": None, "metavar": "FOLDER"}  # how --model is parsed


@dataclass(frozen=True, kw_only=True)
class DeviceArguments:
    """The device of a command.

    Args:
        device: device, such as cpu or cuda:1 (default: an accelerator if available)
    """

    device: str | None = None


@dataclass(frozen=True, kw_only=True)
class ResumableArguments:
    """Arguments of commands that resume after an interruption.

    Args:
        chunk_size: number of texts that are sorted by length together; an interruption loses at most one such chunk per
            process
        restart: discard the work of an interrupted run with the same output
    """

    chunk_size: int = CHUNK_SIZE
    restart: bool = False

    def check_restart(self, is_resumable: bool, source: Path, output: Path) -> None:
        """Raise a `ValueError` if `restart` has no effect, since the work does not resume."""
        if self.restart and not is_resumable:
            raise ValueError(f"--restart must be given with a file as input and output, got {source} and {output}.")


@dataclass(frozen=True, kw_only=True)
class InferenceArguments(DeviceArguments):
    """Arguments of commands that pass texts through a model.

    Args:
        model: folder of a saved model and its tokenizer; repeat --model for an ensemble, which averages
            log-probabilities
        source_lang: source language, for a model of several languages
        target_lang: target language, for a model of several languages
        max_tokens_per_batch: batch size: texts × beams × tokens of the longest text, or of the longest source and
            target; increase it on a GPU
        dtype: dtype of the weights; auto: the saved dtype; int8: also quantize activations, which is faster on a CPU
    """

    model: list[Path] = field(metadata=MODEL_FLAG)
    source_lang: str | None = None
    target_lang: str | None = None
    max_tokens_per_batch: int = 4096
    dtype: str = field(default="auto", metadata={"choices": ("auto", *DTYPES)})

    @property
    def text_options(self) -> dict[str, Any]:
        """The options of `translate` and `score_pairs` that are arguments of all of these commands."""
        languages = drop_none(src_lang=self.source_lang, tgt_lang=self.target_lang)
        return {"max_batch_tokens": self.max_tokens_per_batch, **languages}

    def check_one_model(self) -> None:
        """Raise a `ValueError` if there are several models."""
        if len(self.model) > 1:
            raise ValueError(f"--model must be one model, got {len(self.model)}.")

    @contextmanager
    def load(self, is_resumable: bool, **engine_options: Any) -> Iterator[tuple[Any, Any]]:
        """The model and its tokenizer in this process, which has left the group of processes at the end.

        Args:
            is_resumable: whether the work resumes after an interruption, since the input and the output are files.
            **engine_options: see `load_models`.

        Raises:
            ValueError: there are several processes, which share files only; or see `load_models`.
            KeyboardInterrupt: an interruption, with a message if the work resumes.
        """
        from ..inference.loading import load_models  # takes seconds to import

        state = initialize_process(self.device)
        if state.num_processes > 1 and not is_resumable:
            raise ValueError(f"the input and --output must be files with {state.num_processes} processes.")
        with resumable() if is_resumable else nullcontext():
            yield load_models(self.model, self.dtype, self.device or state.device, "--model", **engine_options)
        state.destroy_process_group()


@dataclass(frozen=True, kw_only=True)
class EngineArguments(DeviceArguments):
    """Arguments of commands that translate by an inference engine.

    Args:
        engine: inference engine for CPUs; the model is exported at the first use, and computes what the engine does not
            support
        engine_dtype: dtype of the engine's weights (default: the fastest, int8)
        engine_folder: folder of exported models (default: engines in the folder of the model)
        engine_shortlist: vmap.txt of an export with a shortlist, which makes translation faster

    Raises:
        ValueError: arguments contradict each other.
    """

    engine: str | None = field(default=None, metadata={"choices": tuple(ENGINES)})
    engine_dtype: str | None = field(default=None, metadata={"choices": DTYPES})
    engine_folder: Path | None = field(default=None, metadata={"metavar": "FOLDER"})
    engine_shortlist: InputFile | None = None

    def __post_init__(self) -> None:
        if self.engine is not None and self.device not in (None, "cpu"):
            raise ValueError(f"--device must be cpu with --engine, got {self.device}.")
        if self.engine is None and any(self.engine_options.values()):
            raise ValueError(
                "--engine must be given with --engine_dtype, --engine_folder and --engine_shortlist, got None."
            )
        if self.engine is not None:
            object.__setattr__(self, "device", "cpu")

    @property
    def engine_options(self) -> dict[str, Any]:
        """The arguments of `load_models`."""
        return {name: value for name, value in vars(self).items() if name.startswith("engine")}
