"""The model card of a trained model: data, hyperparameters, command and scores."""

import platform
import shlex
from collections.abc import Iterable, Sequence
from importlib.metadata import version
from itertools import chain, starmap
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelCard, ModelCardData

from .. import __version__
from ..base.files import write_atomically
from ..base.flags import to_flags
from ..data.overlap import describe_overlap
from ..inference.confidence import Calibrations
from ..inputs_random_transformer import drop_none
from .arguments import DEFAULT_PRESET
from .run_record import final_search, non_default_arguments, weight_arguments
from .run_state import SEARCH_STAGE, Run, RunResult
from .training_arguments import TranslationTrainingArguments

CARD = "README.md"
HYPERPARAMETERS = (
    "seed",
    "max_steps",
    "num_train_epochs",
    "max_tokens_per_batch",
    "gradient_accumulation_steps",
    "lr_scheduler_type",
    "warmup_steps",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "label_smoothing_factor",
    "average_last",
    "num_beams",
    "length_penalty",
    "bf16",
    "fp16",
)
CARD_TEMPLATE = Path(__file__).with_suffix(".md")
PACKAGES = ("torch", "transformers", "tokenizers")


def write_card(run: Run, result: RunResult) -> None:
    """Write the model card in the first process: YAML metadata of the Hub, then Markdown, without absolute paths.

    Args:
        run: the arguments, and the record with the choice of the length penalty.
        result: the result of the run.
    """
    if run.args.process_index > 0:
        return
    languages = list(dict.fromkeys(code for corpus in result.corpora for code in corpus["languages"] or ()))
    metadata = ModelCardData(
        library_name="transformers" if run.model_args.lora_rank is None else "peft",
        language=languages or None,
        license=run.args.hub_license,
        pipeline_tag="translation",
        tags=["translation", "random_transformer"],
    )
    arguments = {"output_dir": run.args.output_dir}
    for group in (run.data_args, run.model_args, run.args):
        arguments |= non_default_arguments(group)
    flags = to_flags(arguments)
    search = run.job.stages[SEARCH_STAGE].facts["description"] if run.args.chooses_length_penalty else ""
    calibrations = Calibrations(run.folder)
    card = ModelCard.from_template(
        metadata,
        str(CARD_TEMPLATE),
        name=run.folder.name,
        model=run.model_args,
        preset=DEFAULT_PRESET,
        result=result,
        search=search,
        parameters=f"{result.parameters:,}",
        version=__version__,
        environment=", ".join(f"{name} {version(name)}" for name in PACKAGES),
        languages=languages,
        reports=[*result.reports, *starmap(describe_overlap, result.overlap.items())],
        command=command_of(flags),
        hardware=result.hardware or hardware(run.args),
        hyperparameters=hyperparameters(run, result),
        calibrations={name: calibrations.get(name) for name in calibrations.by_file},
    )
    content = with_portable_paths(str(card), chain.from_iterable(flags))
    write_atomically(run.folder / CARD, [content.encode(errors="backslashreplace")])  # see `write_json`


def hyperparameters(run: Run, result: RunResult) -> dict[str, Any]:
    """The hyperparameters that the card lists, by name: those above, and others that differ from their defaults."""
    args = run.args
    unused = {"max_steps" if args.max_steps < 0 else "num_train_epochs"}
    if args.load_best_model_at_end or args.save_strategy == "no":
        unused.add("average_last")
    arguments = args.to_dict()
    values = {name: arguments[name] for name in HYPERPARAMETERS} | weight_arguments(args)
    for name in unused:
        values.pop(name, None)
    values |= drop_none(**final_search(args, run.job))
    return {**values, "learning_rate": result.learning_rate, "world_size": result.world_size}


def command_of(flags: Iterable[Sequence[str]]) -> str:
    """The command of a run, with a line for each flag and its values."""
    return " \\\n    ".join(["random-transformer train", *map(shlex.join, flags)])


def with_portable_paths(content: str, paths: Iterable[str]) -> str:
    """A text with absolute paths replaced by paths relative to the working directory, or by names outside of it."""
    for path in map(Path, sorted(paths, key=len, reverse=True)):  # files before their folder
        if path.is_absolute():
            portable = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path.name
            content = content.replace(str(path), str(portable))
    return content


def set_section(path: Path, heading: str, text: str) -> None:
    """Add a section at the end of a model card, or replace it and all that follows."""
    card = str(ModelCard.load(path)).partition(heading)[0].rstrip("\n")
    write_atomically(path, [f"{card}\n\n{heading}\n{text}\n".encode()])


def hardware(args: TranslationTrainingArguments) -> str:
    """The devices of the run, one per process."""
    if args.device.type == "cuda":
        return f"{args.world_size} x {torch.cuda.get_device_name(args.device)}"
    return f"{platform.processor() or platform.machine()} (threads: {torch.get_num_threads()})"
