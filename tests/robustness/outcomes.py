"""Outcomes of loading a damaged folder with the Auto classes and with `translate.py`."""

import contextlib
import io
import json
import logging
import os
import signal
import tempfile
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, MarianConfig, MarianMTModel, TokenizersBackend
from transformers.utils import logging as library_logging

from modeling_random_transformer import (
    RandomTransformerConfig,
    RandomTransformerForConditionalGeneration,
    RandomTransformerTokenizer,
)
from modeling_random_transformer.commands import translate as command

from .mutants import INDEX, SHARD, TRACE

TEXT = "the dog sees a cat"
CORPUS = ["the cat sees the dog", "a dog sees a red car"] * 9
HOSTILE_MODULE = """
import pathlib
pathlib.Path({trace!r}).write_text("run")
class Hostile: pass
"""
# Exceptions of a loader that callers can handle; strict configurations raise their own classes.
CLEAR = (ValueError, OSError, SafetensorError, RuntimeError)
CLEAR_NAMES = ("StrictDataclassFieldValidationError", "StrictDataclassClassValidationError")
SECONDS = 10  # CPU time of one load; a usual one takes less than 0.1
COMPARED_SECONDS = 2  # of a Marian model, which hangs with some of the mutants


class Grade(IntEnum):
    """How well a damaged folder is handled; lower is better."""

    HANDLED = 0  # an exception that callers can handle, or a model that matches its files
    UNCLEAR = 1  # another exception while loading
    REPORTED = 2  # missing weights, which transformers reports
    LATE = 3  # an exception at the first use of model or tokenizer
    SILENT = 4  # randomly initialized weights without a report
    CRASH = 5  # a panic, a hang, or executed code of the folder


@dataclass
class Outcome:
    """The outcome of loading a folder.

    Attributes:
        grade: see `Grade`.
        error: class of the exception, if any.
        message: its message, or the output on stderr.
        status: exit status of the script.
        output: token ids of the translation with the Auto classes.
    """

    grade: Grade
    error: str = ""
    message: str = ""
    status: int | None = None
    output: list[int] = field(default_factory=list)


def save_folders(folder: Path) -> dict[str, Path]:
    """Save valid folders of both architectures, in one file and sharded: `"own"`, `"own-sharded"`, `"marian"` …"""
    tokenizer = RandomTransformerTokenizer.train(CORPUS, vocab_size=280)
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer), "d_model": 8, "encoder_layers": 1, "decoder_layers": 1}
    common = {**sizes, "max_position_embeddings": 80, "activation_function": "relu", "dropout": 0.1}
    torch.manual_seed(0)
    own = RandomTransformerForConditionalGeneration(RandomTransformerConfig(**common, num_heads=2, d_ff=12))
    names = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "encoder_ffn_dim": 12, "decoder_ffn_dim": 12}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    marian = MarianMTModel(MarianConfig(**common, **names, **ids))
    folders = {}
    for name, model in (("own", own), ("marian", marian)):
        for suffix, size in (("", "1GB"), ("-sharded", "12KB")):
            path = folders[name + suffix] = folder / (name + suffix)
            model.save_pretrained(path, max_shard_size=size)
            tokenizer.save_pretrained(path)
            if name == "marian":  # the same files for a transformers class
                TokenizersBackend(tokenizer_file=str(path / "tokenizer.json")).save_pretrained(path)
                settings = json.loads((folders["own" + suffix] / "tokenizer_config.json").read_bytes())
                settings.pop("auto_map", None)
                settings["tokenizer_class"] = "TokenizersBackend"
                (path / "tokenizer_config.json").write_text(json.dumps(settings))
            (path / "hostile.py").write_text(HOSTILE_MODULE.format(trace=str(path.parent / TRACE)))
    return folders


def by_auto_classes(folder: Path, trace: Path, seconds: int = SECONDS) -> Outcome:
    """Load model and tokenizer with the Auto classes, then translate one sentence."""
    with record_outcome(trace, seconds) as outcome:
        library_logging.set_verbosity(logging.CRITICAL)
        model, found = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        outcome.grade = Grade.LATE
        inputs = tokenizer(TEXT, return_tensors="pt")
        outcome.output = model.generate(**inputs, max_length=None, max_new_tokens=4, num_beams=2)[0].tolist()
        outcome.grade = Grade.REPORTED if found["missing_keys"] else Grade.HANDLED
        if initialized_parameters(model, folder) - set(found["missing_keys"]):
            outcome.grade = Grade.SILENT
    return outcome


def by_script(folder: Path, trace: Path) -> Outcome:
    """Run `translate.py` in this process: its exit status and its output on stderr."""
    loaded: list[Any] = []
    load = command.load_models

    def record_load(*arguments: Any) -> Any:
        loaded.append(load(*arguments))
        return loaded[-1]

    command.load_models = record_load
    try:
        with record_outcome(trace) as outcome, capture_stderr() as stderr:
            outcome.grade = Grade.LATE
            try:
                outcome.status = command.main(["--model", str(folder), "--device", "cpu", "--num_beams=2", TEXT])
            except SystemExit as end:
                outcome.status = int(end.code or 0)
            outcome.grade = Grade.HANDLED
            if outcome.status == 0 and initialized_parameters(loaded[0][0], folder):
                outcome.grade = Grade.SILENT
        if not outcome.message:
            outcome.message = stderr[0]
    finally:
        command.load_models = load
        PartialState._reset_state()
        library_logging.set_verbosity_warning()
    return outcome


def initialized_parameters(model: torch.nn.Module, folder: Path) -> set[str]:
    """Names of the parameters that are in no file of the folder."""
    stored: set[str] = set()
    for file in folder.glob("*.safetensors"):
        stored |= set(load_file(file))
    tied = {id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False) if name in stored}
    return {name for name, parameter in model.named_parameters() if name not in stored and id(parameter) not in tied}


def is_helpful(outcome: Outcome, folder: Path, file: str) -> bool:
    """Whether the script's error is one line that names the file, or the index of the damaged shard."""
    lines = outcome.message.splitlines()
    if outcome.status != 2 or len(lines) != 1 or not lines[0].startswith("random-transformer translate: error: "):
        return False
    reason = lines[0].replace(str(folder), "")
    return file in reason or (file == SHARD and INDEX in reason)


@contextlib.contextmanager
def record_outcome(trace: Path, seconds: int = SECONDS) -> Iterator[Outcome]:
    """Record an exception as an outcome; a hang, a panic and executed code are crashes."""
    outcome = Outcome(Grade.UNCLEAR)
    try:
        with time_limit(seconds), quiet():
            yield outcome
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt):
            raise
        outcome.error, outcome.message = type(error).__name__, str(error) or repr(error)
        outcome.traceback = traceback.format_exc()  # type: ignore[attr-defined]
        clear = isinstance(error, CLEAR) or outcome.error in CLEAR_NAMES
        if not isinstance(error, Exception):
            outcome.grade = Grade.CRASH
        elif outcome.grade is Grade.UNCLEAR and clear:
            outcome.grade = Grade.HANDLED
    if trace.exists():
        trace.unlink()
        outcome.grade = Grade.CRASH


class TooSlowError(BaseException):
    """Loading did not finish."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def expired(*_: Any) -> None:
        raise TooSlowError

    previous = signal.signal(signal.SIGPROF, expired)
    signal.setitimer(signal.ITIMER_PROF, seconds)  # of this process's CPU time, whatever else the machine runs
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Discard standard output and warnings."""
    verbosity = library_logging.get_verbosity()
    library_logging.disable_progress_bar()
    with warnings.catch_warnings(), contextlib.redirect_stdout(StdoutWithBuffer()):
        warnings.simplefilter("ignore")
        yield
    library_logging.set_verbosity(verbosity)


class StdoutWithBuffer(io.StringIO):
    """A text stream with a buffer for bytes, like `sys.stdout`."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = io.BytesIO()


@contextlib.contextmanager
def capture_stderr() -> Iterator[list[str]]:
    """Capture stderr, including that of native libraries; the list gets the text at the end."""
    content: list[str] = []
    saved = os.dup(2)
    with tempfile.TemporaryFile("w+") as file:
        os.dup2(file.fileno(), 2)
        handler = logging.StreamHandler(file)
        logging.getLogger("transformers").addHandler(handler)
        try:
            with contextlib.redirect_stderr(file):
                yield content
        finally:
            logging.getLogger("transformers").removeHandler(handler)
            os.dup2(saved, 2)
            os.close(saved)
            file.seek(0)
            content.append(file.read())
