"""A small corpus, and training runs on it."""

import random
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from modeling_random_transformer.base.flags import to_flags
from modeling_random_transformer.commands.train import CommandArguments, parse_arguments
from modeling_random_transformer.training import (
    DataArguments,
    ModelArguments,
    RunResult,
    TranslationTrainingArguments,
    train_translation,
)
from modeling_random_transformer.training.training_arguments import TRAINING_ARGUMENTS
from tests.helpers.interruption import StoppedError, stop

LETTERS = "abcdefgh"
STEPS = 12
SIZES = "d_model=16,d_ff=32,encoder_layers=1,decoder_layers=1,max_position_embeddings=16"
UNSCORED = {"test_source_file": None, "test_target_file": None}
Arguments = tuple[DataArguments, ModelArguments, TranslationTrainingArguments]


def write_corpus(folder: Path) -> None:
    """Random words and their reversals."""
    random_words = random.Random(0)
    for name, size in (("train", 120), ("test", 12)):
        words = ["".join(random_words.choices(LETTERS, k=2 + i % 5)) for i in range(size)]
        (folder / f"{name}.a").write_text("\n".join(words) + "\n")
        (folder / f"{name}.b").write_text("\n".join(word[::-1] for word in words) + "\n")


def write_corpora(folder: Path) -> dict[str, list[str]]:
    """The corpus of `write_corpus` in two parts of 90 and 30 pairs, as arguments."""
    write_corpus(folder)
    for side in "ab":
        lines = (folder / f"train.{side}").read_text().splitlines(keepends=True)
        (folder / f"large.{side}").write_text("".join(lines[:90]))
        (folder / f"small.{side}").write_text("".join(lines[90:]))
    return {
        f"{side}_file": [str(folder / f"{name}.{suffix}") for name in ("large", "small")]
        for side, suffix in (("source", "a"), ("target", "b"))
    }


def parse_command(command_line: list[str]) -> tuple[Any, ...]:
    """The arguments of `random-transformer train`, with an optional recipe."""
    return parse_arguments(command_line, (*TRAINING_ARGUMENTS, CommandArguments), "train", None)


def arguments(folder: Path, output: str | Path, **options: Any) -> dict[str, Any]:
    return {
        "source_file": str(folder / "train.a"),
        "target_file": str(folder / "train.b"),
        "test_source_file": str(folder / "test.a"),
        "test_target_file": str(folder / "test.b"),
        "vocab_size": 280,
        "config_overrides": SIZES,
        "output_dir": str(folder / output),
        "max_steps": STEPS,
        "save_steps": 2,
        "logging_steps": 4,
        "learning_rate": 3e-3,
        "warmup_steps": 4,
        "max_tokens_per_batch": 200,
        "average_last": 2,
        "use_cpu": True,
        **options,
    }


def validation(folder: Path) -> dict[str, str]:
    """The test set as the validation set."""
    return {"validation_source_file": str(folder / "test.a"), "validation_target_file": str(folder / "test.b")}


def flags(folder: Path, output: str | Path = "out", **options: Any) -> list[str]:
    """The arguments on the command line."""
    return [*chain.from_iterable(to_flags(arguments(folder, output, **options)))]


def parsed(folder: Path, output: str | Path, **options: Any) -> Arguments:
    """The arguments of each kind."""
    values = arguments(folder, output, **options)
    kinds: Any = (DataArguments, ModelArguments, TranslationTrainingArguments)
    data, model, args = (
        kind(**{name: values[name] for name in values if name in kind.__dataclass_fields__}) for kind in kinds
    )
    return data, model, args


def run(folder: Path, output: str | Path, **options: Any) -> RunResult:
    """Train with these arguments of all kinds."""
    return train_translation(*parsed(folder, output, **options))


def stop_run(folder: Path, owner: Any, name: str, place: Any = stop, **options: Any) -> None:
    """Train until the function `name` of `owner` is called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, name, place)
        with pytest.raises(StoppedError):
            run(folder, "out", **options)


def loss_and_gradient(loss: Any, logits: Tensor, *arguments: Any, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """The loss, and `scale` times its gradient; the logits are the output of an operation, like those of a model."""
    leaf = logits.clone().requires_grad_()
    value = loss({"logits": leaf * 1}, *arguments)
    return value.detach(), torch.autograd.grad(scale * value, leaf)[0]


def assert_equal_weights(folder: Path, expected: Path, file: str = "model.safetensors") -> None:
    torch.testing.assert_close(load_file(folder / file), load_file(expected / file), rtol=0, atol=0)
