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
from ..utils.text import markdown_table
from .arguments import PRESET, ModelArguments, to_flags
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
    metadata = ModelCardData(
        library_name="transformers" if model_args.lora_rank is None else "peft",
        language=_languages(result) or None,
        pipeline_tag="translation",
        tags=["translation", "random_transformer"],
    )
    values = {name: getattr(args, name) for name in HYPERPARAMETERS}
    values |= {"learning_rate": result.learning_rate, "world_size": result.world_size}
    values.pop("max_steps" if args.max_steps < 0 else "num_train_epochs")
    hyperparameters = [(f"`{name}`", getattr(value, "value", value)) for name, value in values.items()]
    overlap = starmap(describe_overlap, result.overlap.items())
    body = TEMPLATE.read_text(encoding="utf-8").format(
        name=path.parent.name,
        languages=" --source_lang CODE --target_lang CODE" if _languages(result) else "",
        summary=_summary(result, model_args),
        pairs=result.pairs,
        version=__version__,
        environment=", ".join(f"{name} {version(name)}" for name in PACKAGES),
        reports="\n".join(f"- {line}" for line in chain(result.reports, overlap)),
        corpora=_corpora(result),
        command=" \\\n    ".join(["random-transformer train", *map(shlex.join, flags)]),
        steps=result.steps,
        minutes=result.seconds / 60,
        hardware=_hardware(args, result.world_size),
        hyperparameters=markdown_table(("argument", "value"), hyperparameters),
        history=_history(run.trained.facts["history"]),
        scores=_scores(result),
    )
    for text in sorted(chain.from_iterable(flags), key=len, reverse=True):  # files before their folder
        if (file := Path(text)).is_absolute():  # relative to the working directory, or its name if it is outside of it
            portable = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file.name
            body = body.replace(text, str(portable))
    card = ModelCard(f"---\n{metadata.to_yaml()}\n---\n\n{body}")
    write_atomically(path, [str(card).encode()])


def set_section(path: Path, heading: str, text: str) -> None:
    """Add a section at the end of a model card, or replace it and all that follows."""
    card = str(ModelCard.load(path)).partition(heading)[0].rstrip("\n")
    write_atomically(path, [f"{card}\n\n{heading}\n{text}\n".encode()])


def _summary(result: RunResult, model_args: ModelArguments) -> str:
    """What was trained, and from which initial weights."""
    if model_args.model_name_or_path is None:
        overrides = f", {model_args.config_overrides}" if model_args.config_overrides else ""
        sizes = f"preset `{model_args.preset or PRESET}`{overrides}"
        return f"A Transformer of {result.parameters:,} parameters ({sizes}), trained from scratch"
    if model_args.has_new_vocabulary:
        parent = f"the weights of `{model_args.model_name_or_path}` and another vocabulary"
        return f"A Transformer of {result.parameters:,} parameters, which started from {parent}, trained"
    if model_args.lora_rank is None:
        return f"`{model_args.model_name_or_path}`, {result.parameters:,} parameters, fine-tuned"
    adapter = f"A LoRA adapter (rank {model_args.lora_rank}, {result.trained:,} parameters)"
    return f"{adapter} of `{model_args.model_name_or_path}`, trained"


def _corpora(result: RunResult) -> str:
    """The training corpora with their languages and weights."""
    rows = [
        (f"`{corpus['name']}`", "→".join(corpus["languages"] or ()), f"{corpus['pairs']:,}", f"{corpus['weight']:.3g}")
        for corpus in result.corpora
    ]
    return markdown_table(("training corpus", "direction", "pairs", "weight"), rows)


def _languages(result: RunResult) -> list[str]:
    return list(dict.fromkeys(code for corpus in result.corpora for code in corpus["languages"] or ()))


def _history(history: list[dict[str, Any]]) -> str:
    items = [
        f"- from step {entry['step']:,}: "
        + ", ".join(f"`{name}` {now} (was {before})" for name, (before, now) in entry["changes"].items())
        for entry in history
    ]
    return "\n".join(["Changed when the run was resumed:", "", *items, "", ""]) if items else ""


def _scores(result: RunResult) -> str:
    if not result.scores:
        return "The run had no validation or test set."
    rows = [
        (split, name, f"{values['score']:.2f}", f"`{values['signature']}`".replace("|", "\\|"))
        for split, metrics in result.scores.items()
        for name, values in metrics.items()
    ]
    return markdown_table(("set", "metric", "score", "signature"), rows)


def _hardware(args: TranslationTrainingArguments, world_size: int) -> str:
    """The devices of the run, one per process."""
    if args.device.type == "cuda":
        return f"{world_size} x {torch.cuda.get_device_name(args.device)}"
    return f"{torch.get_num_threads()} threads of {platform.processor() or platform.machine()}"
