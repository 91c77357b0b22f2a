"""What loading a damaged folder leads to, through the Auto classes and through `examples/translate.py`."""

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
from modeling_random_transformer.translation import command

from .mutants import TRACE

TEXT = "the dog sees a cat"
CORPUS = ["the cat sees the dog", "a dog sees a red car"] * 9
HOSTILE_MODULE = """
import pathlib
pathlib.Path({trace!r}).write_text("run")
class Hostile: pass
"""
# What a loader may raise so that a caller can handle it; strict configurations raise a class of their own.
CLEAR = (ValueError, OSError, SafetensorError, RuntimeError)
CLEAR_NAMES = ("StrictDataclassFieldValidationError", "StrictDataclassClassValidationError")
SECONDS = 20


class Grade(IntEnum):
    """How well a damaged folder is handled; less is better."""

    HANDLED = 0  # an error that callers can catch, or a model that works as its files say
    UNCLEAR = 1  # another class of error while loading
    REPORTED = 2  # a model with weights that are missing, which the library reports
    LATE = 3  # an error when the model or the tokenizer is used first
    SILENT = 4  # weights initialized without a report
    CRASH = 5  # a panic, a hang, code of the folder run


@dataclass
class Outcome:
    """What happened.

    Attributes:
        grade: see `Grade`.
        error: the exception's class, if there was one.
        message: its message, or what was printed on stderr.
        status: the exit code of the script.
        output: the translation's token ids through the Auto classes.
    """

    grade: Grade
    error: str = ""
    message: str = ""
    status: int | None = None
    output: list[int] = field(default_factory=list)


def save_folders(folder: Path) -> dict[str, Path]:
    """Undamaged folders, one of each architecture in one file and in shards: `"own"`, `"own-sharded"`, `"marian"` …"""
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
            if name == "marian":  # the same files for the library's own class
                TokenizersBackend(tokenizer_file=str(path / "tokenizer.json")).save_pretrained(path)
                settings = json.loads((folders["own" + suffix] / "tokenizer_config.json").read_bytes())
                settings.pop("auto_map", None)
                settings["tokenizer_class"] = "TokenizersBackend"
                (path / "tokenizer_config.json").write_text(json.dumps(settings))
            (path / "hostile.py").write_text(HOSTILE_MODULE.format(trace=str(path.parent / TRACE)))
    return folders


def by_auto_classes(folder: Path, trace: Path) -> Outcome:
    """Load model and tokenizer as any user of transformers does, then translate one sentence."""
    with guarded(trace) as outcome:
        library_logging.set_verbosity(logging.CRITICAL)
        model, found = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        outcome.grade = Grade.LATE
        inputs = tokenizer(TEXT, return_tensors="pt")
        outcome.output = model.generate(**inputs, max_length=None, max_new_tokens=4, num_beams=2)[0].tolist()
        outcome.grade = Grade.REPORTED if found["missing_keys"] else Grade.HANDLED
        if initialized(model, folder) - set(found["missing_keys"]):
            outcome.grade = Grade.SILENT
    return outcome


def by_script(folder: Path, trace: Path) -> Outcome:
    """`examples/translate.py` in this process: its exit code and what it prints on stderr."""
    loaded: list[Any] = []
    load = command.load

    def recorded(*arguments: Any) -> Any:
        loaded.append(load(*arguments))
        return loaded[-1]

    command.load = recorded
    try:
        with guarded(trace) as outcome, captured() as stderr:
            outcome.grade = Grade.LATE
            try:
                outcome.status = command.main(["--model", str(folder), "--device", "cpu", "--num_beams=2", TEXT])
            except SystemExit as end:
                outcome.status = int(end.code or 0)
            outcome.grade = Grade.HANDLED
            if outcome.status == 0 and initialized(loaded[0][0], folder):
                outcome.grade = Grade.SILENT
        if not outcome.message:
            outcome.message = stderr[0]
    finally:
        command.load = load
        PartialState._reset_state()
        library_logging.set_verbosity_warning()
    return outcome


def initialized(model: torch.nn.Module, folder: Path) -> set[str]:
    """Names of parameters that come from none of the folder's files."""
    stored: set[str] = set()
    for file in folder.glob("*.safetensors"):
        stored |= set(load_file(file))
    tied = {id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False) if name in stored}
    return {name for name, parameter in model.named_parameters() if name not in stored and id(parameter) not in tied}


def is_helpful(outcome: Outcome, folder: Path, file: str, keys: tuple[str, ...]) -> bool:
    """Whether the script's error is one line that names the file and, if a field is damaged, the field.

    Only the text after the folder counts: the text before it is the same in all errors and contains words such as
    "model" and "tokenizer", which are fields too.
    """
    lines = outcome.message.splitlines()
    if outcome.status != 2 or len(lines) != 1 or not lines[0].startswith("translate.py: error: "):
        return False
    reason = lines[0].partition(f", got {folder}: ")[2]
    return file in reason and (not keys or any(key in reason for key in keys))


@contextlib.contextmanager
def guarded(trace: Path) -> Iterator[Outcome]:
    """Record an exception as an outcome; a hang, a panic and code that runs are crashes."""
    outcome = Outcome(Grade.UNCLEAR)
    try:
        with time_limit(SECONDS), quiet():
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
    """The load does not come to an end."""


@contextlib.contextmanager
def time_limit(seconds: int) -> Iterator[None]:
    def expired(*_: Any) -> None:
        raise TooSlowError

    previous = signal.signal(signal.SIGALRM, expired)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without standard output, and without Python's warnings."""
    verbosity = library_logging.get_verbosity()
    library_logging.disable_progress_bar()
    with warnings.catch_warnings(), contextlib.redirect_stdout(Binary()):
        warnings.simplefilter("ignore")
        yield
    library_logging.set_verbosity(verbosity)


class Binary(io.StringIO):
    """A text stream with a buffer for bytes, as `sys.stdout` has."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = io.BytesIO()


@contextlib.contextmanager
def captured() -> Iterator[list[str]]:
    """All that is written to stderr, by this process' libraries too; the text is there at the end."""
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
