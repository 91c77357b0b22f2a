"""The model card of a trained model: data, hyperparameters, command and scores."""

import platform
import shlex
from importlib.metadata import version
from itertools import chain, starmap
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelCardData

from .. import __version__
from ..data.splitting import describe_overlap
from ..utils.atomic_files import write_atomically
from .arguments import PRESET, to_flags
from .manifest import Run, RunResult, changed_arguments
from .recipe import TranslationTrainingArguments

CARD = "README.md"
HYPERPARAMETERS = ("seed", "max_steps", "num_train_epochs", "max_tokens_per_batch", "gradient_accumulation_steps",
    "lr_scheduler_type", "warmup_steps", "adam_beta1", "adam_beta2", "adam_epsilon", "max_grad_norm",
    "label_smoothing_factor", "average_last", "num_beams", "length_penalty", "bf16", "fp16")  # fmt: skip
TEMPLATE = Path(__file__).with_suffix(".md")
PACKAGES = ("torch", "transformers", "tokenizers")


def write_model_card(path: Path, result: RunResult, run: Run) -> None:
    """Write a model card in the Hub's format: YAML metadata, then Markdown, without absolute paths.

    Args:
        path: the file to write.
        result: the result of the run.
        run: its arguments, and its record with the values that changed when it was resumed.
    """
    model_args, args = run.model, run.args
    given: dict[str, Any] = {"output_dir": args.output_dir}
    for arguments in (run.data, model_args, args):
        given |= changed_arguments(arguments)
    flags = to_flags(given)
    languages = list(dict.fromkeys(code for corpus in result.corpora for code in corpus["languages"] or ()))
    metadata = ModelCardData(
        library_name="transformers" if model_args.lora_rank is None else "peft",
        language=languages or None,
        pipeline_tag="translation",
        tags=["translation", "random_transformer"],
    )
    values = {name: getattr(args, name) for name in HYPERPARAMETERS}
    values |= {"learning_rate": result.learning_rate, "world_size": result.world_size}
    unused = {"max_steps" if args.max_steps < 0 else "num_train_epochs"}
    unused |= {"average_last"} if args.load_best_model_at_end or args.save_strategy == "no" else set()
    card = ModelCard.from_template(
        metadata,
        str(TEMPLATE),
        name=path.parent.name,
        model=model_args,
        preset=PRESET,
        result=result,
        parameters=f"{result.parameters:,}",
        version=__version__,
        environment=", ".join(f"{name} {version(name)}" for name in PACKAGES),
        languages=languages,
        reports=[*result.reports, *starmap(describe_overlap, result.overlap.items())],
        command=" \\\n    ".join(["random-transformer train", *map(shlex.join, flags)]),
        hardware=result.hardware or hardware(args),
        hyperparameters={name: getattr(value, "value", value) for name, value in values.items() if name not in unused},
        history=run.trained.facts["history"],
    )
    content = str(card)
    for text in sorted(chain.from_iterable(flags), key=len, reverse=True):  # files before their folder
        if (file := Path(text)).is_absolute():  # relative to the working directory, or its name if it is outside of it
            portable = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file.name
            content = content.replace(text, str(portable))
    write_atomically(path, [content.encode()])


def set_section(path: Path, heading: str, text: str) -> None:
    """Add a section at the end of a model card, or replace it and all that follows."""
    card = str(ModelCard.load(path)).partition(heading)[0].rstrip("\n")
    write_atomically(path, [f"{card}\n\n{heading}\n{text}\n".encode()])


def hardware(args: TranslationTrainingArguments) -> str:
    """The devices of the run, one per process."""
    if args.device.type == "cuda":
        return f"{args.world_size} x {torch.cuda.get_device_name(args.device)}"
    return f"{torch.get_num_threads()} threads of {platform.processor() or platform.machine()}"
