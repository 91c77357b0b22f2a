"""Train or fine-tune a translation model.

    random-transformer train --source_file train.en --target_file train.de --output_dir outputs/en-de

Flags may follow the path of a YAML or JSON recipe. For one with stages, such as examples/recipes/low_resource.yaml,
--help also lists --parent, --monolingual_source, --monolingual_target, --student and --remove_stages.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..base.flags import Parser
from ..stages.recipe_file import RecipeArguments, read_recipe
from ..stages.recipes import TRAINING, RecipeRun, table, training_arguments
from ..training.estimation import dry_run
from ..training.run import train_translation
from ..training.training_arguments import UNSUPPORTED

HIDDEN = (*UNSUPPORTED, "do_train", "do_eval")  # arguments without effect, which are not in the help


@dataclass
class CommandArguments:
    """What to do with the run.

    Args:
        dry_run: Measure 20 steps on 1,000 pairs and print an estimate; save nothing.
    """

    dry_run: bool = False


def run(program: str, argv: Sequence[str]) -> None:
    """Parse the arguments, train and print the scores; or measure a few steps and print the estimate."""
    path, flags = split_recipe(argv)
    if path is not None and "stages" in read_recipe(path):
        run_stages(program, path, flags)
        return
    data, model, args, command = parse_arguments(argv, (*TRAINING, CommandArguments), program, __doc__)
    if command.dry_run:
        estimate = dry_run(data, model, args)
        if args.process_index == 0:
            print(estimate)
        return
    result = train_translation(data, model, args)
    if args.process_index == 0:
        for split, metrics in result.scores.items():
            for name, values in metrics.items():
                print(f"{split} {name} {values['score']:.2f} {values['signature']}")
        print(f"Saved the model to {result.folder}.")


def run_stages(program: str, path: Path, flags: Sequence[str]) -> None:
    """Run the stages of a recipe and print their table, or print an estimate of each."""
    parser = parser_of((*TRAINING, CommandArguments, RecipeArguments), program, __doc__)
    arguments = parser.given(flags)
    is_dry = arguments.pop("dry_run", False)
    recipe = RecipeRun(path, **arguments)
    text = recipe.estimate() if is_dry else table(recipe.run())
    if recipe.args.process_index == 0:
        print(text)
        if not is_dry:
            print(f"Saved the model to {recipe.folder}.")


def parse_arguments(
    argv: Sequence[str], classes: Sequence[type], program: str, description: str | None
) -> tuple[Any, ...]:
    """Parse flags, which may follow the path of a recipe without stages.

    Args:
        argv: the path, if any, and the flags.
        classes: the dataclasses of the arguments.
        program: the name in usage and errors.
        description: the beginning of the help.

    Returns:
        An object of each class.

    Raises:
        ValueError: an argument or its value is invalid.
    """
    path, flags = split_recipe(argv)
    given = parser_of(classes, program, description).given(flags)
    return training_arguments({} if path is None else read_recipe(path), given, classes)


def parser_of(classes: Sequence[type], program: str, description: str | None) -> Parser:
    """A parser of training arguments. Warnings about them are shown without a prefix."""
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    return Parser(program, description, classes, hidden=HIDDEN)


def split_recipe(argv: Sequence[str]) -> tuple[Path | None, Sequence[str]]:
    """The path of a recipe, if it is the first argument, and the flags."""
    if argv and Path(argv[0]).suffix in (".yaml", ".yml", ".json"):
        return Path(argv[0]), argv[1:]
    return None, argv
