"""The settings of the rows of Table 3, as text for the report."""

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from modeling_random_transformer.inputs_random_transformer import drop_none
from modeling_random_transformer.training.arguments import DEFAULT_VOCAB_SIZE, FILE_ARGUMENTS
from modeling_random_transformer.training.run_record import weight_arguments

from .table3_runs import Experiment

# Training arguments that are listed even if they have their defaults.
ALWAYS = (
    *("max_steps", "max_tokens_per_batch", "gradient_accumulation_steps", "learning_rate", "lr_scheduler_type"),
    *("warmup_steps", "average_last", "save_steps"),
)
# Arguments that differ between rows, do not affect them, or are listed separately.
OMITTED = (
    *("seed", "label_smoothing_factor", "preset", "preprocessing_num_workers", "vocab_size"),
    *("test_source_file", "test_target_file", "test_file", "test_split"),
)
PATHS = (*FILE_ARGUMENTS, "dataset_name", "tokenizer")


def settings(experiment: Experiment, seeds: Sequence[int]) -> str:
    """A Markdown list of the flags that determine the results. Files are represented by their names.

    Args:
        experiment: the arguments of all rows.
        seeds: the seeds of each row.
    """
    data, model, args = experiment.data, experiment.model, experiment.args
    sizes: dict[str, Any] = {"width_scale": experiment.width_scale, "depth_scale": experiment.depth_scale}
    if model.tokenizer is None:
        sizes["vocab_size"] = model.vocab_size or DEFAULT_VOCAB_SIZE
    length = () if args.max_steps > 0 else ("num_train_epochs",)
    recipe = dict.fromkeys((*length, *ALWAYS, *weight_arguments(args)))
    training = "Training" if args.world_size == 1 else f"Training on {args.world_size} devices"
    groups: dict[str, dict[str, Any]] = {
        "Data": _changed(data, (entry.name for entry in fields(data))),
        "Model": sizes | _changed(model, (entry.name for entry in fields(model))),
        training: {"seeds": list(seeds)} | _changed(args, recipe, always=(*length, *ALWAYS)),
        "Evaluation": drop_none(**args.search_kwargs),
    }
    return "\n".join(f"- {name}: `{' '.join(map(_flag, values.items()))}`" for name, values in groups.items())


def _changed(arguments: Any, names: Iterable[str], always: Sequence[str] = ()) -> dict[str, Any]:
    """The arguments that differ from their defaults, and those of `always` that are set."""
    defaults = {entry.name: entry.default for entry in fields(arguments)}
    values = {name: getattr(arguments, name) for name in names if name not in OMITTED}
    return {
        name: getattr(value, "value", value)  # members of enumerations are saved by value
        for name, value in values.items()
        if value is not None and (name in always or value != defaults[name])
    }


def _flag(argument: tuple[str, Any]) -> str:
    """An argument as a flag of the command line."""
    name, value = argument
    values = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else value]
    texts = [str(value).removesuffix(".0") if isinstance(value, float) else str(value) for value in values]
    if name in PATHS:
        texts = [Path(text).name if Path(text).exists() else text for text in texts]
    return " ".join([f"--{name}", *map(shlex.quote, texts)])
