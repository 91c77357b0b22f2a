"""Damaged model folders: each is loaded by the Auto classes and by `translate`, in processes of their own."""

import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils import logging as library_logging

from modeling_random_transformer import (
    RandomTransformerConfig,
    RandomTransformerForConditionalGeneration,
    RandomTransformerTokenizer,
    cli,
)
from tests.helpers.command_line import exit_status

from .mutants import INDEX, SHARD, TRACE, Mutant, all_mutants, copy_folder
from .processes import Report, in_process

TEXT = "the dog sees a cat"
CORPUS = ["the cat sees the dog", "a dog sees a red car"] * 9
HOSTILE_MODULE = """
import pathlib
pathlib.Path({trace!r}).write_text("run")
class Hostile: pass
"""
SECONDS = 10  # CPU time of one load; a usual one takes less than 0.1
MIN_HELPFUL_SHARE = 0.95


class Outcome(NamedTuple):
    """What a way of loading does with a folder.

    Attributes:
        status: exit status of the command; of the Auto classes 0, or 2 after an exception.
        message: the exception or the output on stderr.
        initialized: parameters of the model that are in no file of the folder.
        missing: those that transformers reports.
    """

    status: int
    message: str = ""
    initialized: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()


def by_auto_classes(folder: Path) -> Outcome:
    """Load model and tokenizer with the Auto classes, then translate one sentence."""
    library_logging.set_verbosity(logging.CRITICAL)
    outcome = Outcome(2)
    try:
        model, loading_info = AutoModelForSeq2SeqLM.from_pretrained(folder, output_loading_info=True)
        outcome = Outcome(2, "", initialized_parameters(model, folder), frozenset(loading_info["missing_keys"]))
        inputs = AutoTokenizer.from_pretrained(folder)(TEXT, return_tensors="pt")
        model.generate(**inputs, max_length=None, max_new_tokens=4, num_beams=2)
    except Exception as error:  # of transformers, which has no class of its own for damaged files
        return outcome._replace(message=f"{type(error).__name__}: {error}")
    return outcome._replace(status=0)


def by_command(folder: Path) -> Outcome:
    """Run `translate`: its exit status and its output on stderr, including that of native libraries."""
    with tempfile.TemporaryFile("w+") as errors, redirect_stderr(errors), redirect_stdout(open(os.devnull, "w")):
        os.dup2(errors.fileno(), 2)
        logging.getLogger("transformers").addHandler(logging.StreamHandler(errors))
        command = ["translate", "--model", folder, "--device", "cpu", "--num_beams=2", TEXT]
        status = exit_status(cli.main, command)
        errors.seek(0)
        return Outcome(status, errors.read())


def initialized_parameters(model: torch.nn.Module, folder: Path) -> frozenset[str]:
    """Names of the parameters that are in no file of the folder."""
    stored = {name for file in folder.glob("*.safetensors") for name in load_file(file)}
    tied = {id(parameter) for name, parameter in model.named_parameters(remove_duplicate=False) if name in stored}
    return frozenset(name for name, parameter in model.named_parameters() if id(parameter) not in tied)


def is_helpful(outcome: Outcome, folder: Path, file: str) -> bool:
    """Whether the command's error is one line that names the file, or the index of the damaged shard."""
    lines = outcome.message.splitlines()
    if outcome.status != 2 or len(lines) != 1 or not lines[0].startswith("random-transformer translate: error: "):
        return False
    reason = lines[0].replace(str(folder), "")
    return file in reason or (file == SHARD and INDEX in reason)


class Folders:
    """Loads damaged copies of a saved folder, in one file or sharded.

    Args:
        folder: an empty folder for all files.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        tokenizer = RandomTransformerTokenizer.train(CORPUS, vocab_size=280)
        sizes: dict[str, Any] = {"d_model": 8, "d_ff": 12, "encoder_layers": 1, "decoder_layers": 1, "num_heads": 2}
        config = RandomTransformerConfig(vocab_size=len(tokenizer), max_position_embeddings=80, **sizes)
        torch.manual_seed(0)
        model = RandomTransformerForConditionalGeneration(config)
        for name, size in (("whole", "1GB"), ("sharded", "12KB")):
            model.save_pretrained(folder / name, max_shard_size=size)
            tokenizer.save_pretrained(folder / name)
            (folder / name / "hostile.py").write_text(HOSTILE_MODULE.format(trace=str(folder / TRACE)))
        self.mutants = all_mutants(folder / "whole", folder / "sharded")

    def fuzz(self, mutants: Sequence[Mutant]) -> Report:
        """Load some mutants in each way.

        A finding is a process that does not end by itself, executed code, an exception of the command that it does not
        catch, or weights that are initialized without a report.
        """
        report = Report()
        for mutant in mutants:
            target = copy_folder(self.folder / ("sharded" if mutant.sharded else "whole"), self.folder / "damaged")
            mutant.apply(target)
            auto = self.load(by_auto_classes, mutant, report)
            command_outcome = self.load(by_command, mutant, report)
            if auto and auto.initialized - auto.missing:
                report.findings.append(f"{mutant}: the Auto classes initialize {sorted(auto.initialized)[:3]}")
            if auto and auto.initialized and command_outcome and command_outcome.status == 0:
                report.findings.append(f"{mutant}: the command initializes {sorted(auto.initialized)[:3]}")
            if command_outcome and command_outcome.status:
                report.outcomes["rejected"] += 1
                if not is_helpful(command_outcome, target, mutant.file):
                    report.unhelpful.append(f"{mutant}: {command_outcome.status} {command_outcome.message[-400:]!r}")
        return report

    def load(self, way: Callable[[Path], Outcome], mutant: Mutant, report: Report) -> Outcome | None:
        outcome = in_process(partial(way, self.folder / "damaged"), SECONDS)
        trace = self.folder / TRACE
        if trace.exists():
            trace.unlink()
            outcome = "executed code of the folder"
        if isinstance(outcome, str):
            report.findings.append(f"{mutant}: {way.__name__} {outcome}")
            return None
        report.outcomes[f"{way.__name__} {outcome.status}"] += 1
        return outcome
