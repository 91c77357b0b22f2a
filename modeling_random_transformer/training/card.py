"""The model card of a trained translator: what it was made of, how, and how well it does."""

import platform
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .. import __version__
from ..utils.files import write_atomically
from .arguments import PRESET, ModelArguments
from .recipe import TranslationTrainingArguments

if TYPE_CHECKING:
    from .run import Result

CARD = "README.md"
RECIPE = [
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
]


def write_card(
    path: Path,
    result: "Result",
    model: ModelArguments,
    args: TranslationTrainingArguments,
    command: str,
    history: list[dict[str, Any]],
) -> None:
    """Write a card in the Hub's format: YAML in front, then data, recipe, command, hardware and scores.

    Args:
        path: the file.
        result: what came of the run.
        model: the model that was trained.
        args: the recipe.
        command: the command line.
        history: the values that changed when the run was resumed, as the manifest has them.
    """
    scores = [
        f"| {split} | {name} | {values['score']:.2f} | `{_in_cell(values['signature'])}` |"
        for split, metrics in result.scores.items()
        for name, values in metrics.items()
    ]
    values = {name: getattr(value := getattr(args, name), "value", value) for name in RECIPE}
    # Of steps and epochs, the one that counts.
    del values["max_steps" if args.max_steps < 0 else "num_train_epochs"]
    values |= {"learning_rate": result.learning_rate, "world_size": result.world_size}
    recipe = [f"| `{name}` | {value} |" for name, value in values.items()]
    resumed = [
        f"- from step {entry['step']:,} on: "
        + ", ".join(f"`{name}` {now}, before {before}" for name, (before, now) in entry["changes"].items())
        for entry in history
    ]
    lines = [
        "---",
        f"library_name: {'transformers' if model.lora_rank is None else 'peft'}",
        "pipeline_tag: translation",
        "tags:",
        "- translation",
        "- random_transformer",
        "---",
        "",
        f"# {path.parent.name}",
        "",
        f"{_what(result, model)} on {result.pairs:,} pairs",
        f"with random-transformer {__version__}.",
        "",
        "## Data",
        "",
        *(f"- {report}" for report in result.reports),
        "",
        "## Training",
        "",
        "```sh",
        command,
        "```",
        "",
        f"{result.steps:,} steps; {result.seconds / 60:.1f} minutes in the last run of the command, on {_hardware()}.",
        "",
        "| argument | value |",
        "|---|---|",
        *recipe,
        "",
        *(["Changed when the run was resumed:", "", *resumed, ""] if resumed else []),
        "## Scores",
        "",
        *(
            ["| set | metric | score | signature |", "|---|---|---|---|", *scores]
            if scores
            else ["No test set was given."]
        ),
        "",
    ]
    write_atomically(path, ["\n".join(lines).encode()])


def _what(result: "Result", model: ModelArguments) -> str:
    """What was trained, from what."""
    overrides = f", {model.config_overrides}" if model.config_overrides else ""
    if model.model_name_or_path is None:
        sizes = f"preset `{model.preset or PRESET}`{overrides}"
        return f"A Transformer of {result.parameters:,} parameters ({sizes}), trained from random weights"
    if model.lora_rank is None:
        return f"The translator `{model.model_name_or_path}` of {result.parameters:,} parameters, trained further"
    adapter = f"An adapter (LoRA, rank {model.lora_rank}) of {result.trained:,} parameters"
    return f"{adapter} for the translator `{model.model_name_or_path}`, trained"


def _in_cell(text: str) -> str:
    return text.replace("|", "\\|")


def _hardware() -> str:
    if torch.cuda.is_available():
        return f"{torch.cuda.device_count()} x {torch.cuda.get_device_name()}"
    return f"{torch.get_num_threads()} threads of {platform.processor() or platform.machine()}"
