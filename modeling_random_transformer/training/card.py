"""The model card of a trained translator: what it was made of, how, and how well it does."""

import platform
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from .arguments import PRESET, ModelArguments
from .recipe import TranslationTrainingArguments

if TYPE_CHECKING:
    from .run import Result

RECIPE = [
    "seed",
    "max_steps",
    "max_tokens_per_batch",
    "gradient_accumulation_steps",
    "learning_rate",
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
) -> None:
    """Write a card in the Hub's format: YAML in front, then data, recipe, command, hardware and scores."""
    scores = [
        f"| {split} | {name} | {values['score']:.2f} | `{_in_cell(values['signature'])}` |"
        for split, metrics in result.scores.items()
        for name, values in metrics.items()
    ]
    recipe = [f"| `{name}` | {getattr(value := getattr(args, name), 'value', value)} |" for name in RECIPE]
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
        f"with random-transformer {version('random-transformer')}.",
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
        f"{result.steps:,} steps; {result.seconds / 60:.1f} minutes in this process's last run, on {_hardware()}.",
        "",
        "| argument | value |",
        "|---|---|",
        *recipe,
        "",
        "## Scores",
        "",
        *(
            ["| set | metric | score | signature |", "|---|---|---|---|", *scores]
            if scores
            else ["No test set was given."]
        ),
        "",
    ]
    path.write_text("\n".join(lines), encoding="utf-8")


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
