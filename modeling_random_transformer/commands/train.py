"""The command line of training: `random-transformer train` and `examples/train_translation.py`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from ..training.arguments import DataArguments, ModelArguments, to_flags
from ..training.estimation import dry_run
from ..training.recipe import TranslationTrainingArguments
from ..training.run import train_translation
from ..utils.errors import reraise_as_value_error
from .command_line import Parser


def run(program: str, argv: Sequence[str]) -> None:
    """Parse the arguments, train and print the scores; or measure a few steps and print the estimate."""
    data_args, model_args, args, command = parse_arguments(argv, program=program)
    if command.dry_run:
        estimate = dry_run(data_args, model_args, args)
        if args.process_index == 0:
            print(estimate)
        return
    result = train_translation(data_args, model_args, args)
    if args.process_index == 0:
        for split, metrics in result.scores.items():
            for name, values in metrics.items():
                print(f"{split} {name} {values['score']:.2f} {values['signature']}")
        print(f"Saved the model to {result.folder}.")


@dataclass
class CommandArguments:
    """What to do with the run."""

    dry_run: bool = field(
        default=False,
        metadata={"help": "Measure 20 steps on the first 1,000 pairs and print an estimate of the run; save nothing."},
    )


ARGUMENTS = (DataArguments, ModelArguments, TranslationTrainingArguments, CommandArguments)


def parse_arguments(
    argv: Sequence[str],
    classes: Sequence[type] = ARGUMENTS,
    program: str = "random-transformer train",
    description: str | None = None,
) -> tuple[Any, ...]:
    """Parse flags, optionally after the path of a YAML or JSON recipe. Flags override the recipe.

    Args:
        argv: the flags.
        classes: the dataclasses of the arguments.
        program: the name in usage and errors.
        description: the beginning of the help.

    Returns:
        An object of each class.

    Raises:
        ValueError: the recipe is missing or is not a mapping, or an argument or its value is invalid.
    """
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    parser = Parser(program, description, classes)
    flags = list(argv)
    if flags and Path(flags[0]).suffix in (".yaml", ".yml", ".json"):
        flags = [*chain.from_iterable(to_flags(read_recipe(Path(flags[0])))), *flags[1:]]
    *parsed, unknown = parser.parse_args_into_dataclasses(flags, return_remaining_strings=True)
    if unknown:
        parser.error(f"arguments must be among those of --help, got {' '.join(unknown)}.")
    return tuple(parsed)


def read_recipe(path: Path) -> dict[str, Any]:
    """The arguments in a YAML or JSON file (JSON is YAML).

    Raises:
        ValueError: the file is missing or damaged.
    """
    import yaml

    with reraise_as_value_error(f"the recipe {path} must be YAML or JSON"):
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must map argument names to values, got {type(recipe).__name__}.")
    return recipe
