"""Train a translator from parallel text and nothing else.

    python examples/train_translation.py --source_file train.en --target_file train.de \\
        --validation_source_file val.en --validation_target_file val.de \\
        --test_source_file test.en --test_target_file test.de --output_dir outputs/en-de
    python examples/train_translation.py recipe.yaml --seed 2     # a YAML or JSON file, and what differs from it
    accelerate launch examples/train_translation.py …             # on several devices

A run that was stopped, in whatever way, goes on with the same command.
"""

import logging
import sys
from pathlib import Path
from typing import Any

import yaml
from command_line import complain
from transformers import HfArgumentParser

from modeling_random_transformer.training import (
    DataArguments,
    ModelArguments,
    TranslationTrainingArguments,
    train_translation,
)


def main() -> int:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        data, model, args = parse(sys.argv[1:])
        result = train_translation(data, model, args)
    except (ValueError, FloatingPointError, OSError) as error:
        complain("train_translation.py", str(error))
        return 2
    for split, metrics in result.scores.items():
        for name, values in metrics.items():
            print(f"{split} {name} {values['score']:.2f} {values['signature']}")
    print(f"The model is in {result.folder}.")
    return 0


def parse(arguments: list[str]) -> tuple[DataArguments, ModelArguments, TranslationTrainingArguments]:
    """The arguments of the file named first, if there is one, and those of the command line, which override it.

    Raises:
        ValueError: the file is missing, is not a mapping, or has a name that no argument has.
    """
    parser = HfArgumentParser((DataArguments, ModelArguments, TranslationTrainingArguments))
    if arguments and Path(arguments[0]).suffix in (".yaml", ".yml", ".json"):
        parser.set_defaults(**read_recipe(Path(arguments[0]), {action.dest for action in parser._actions}))
        arguments = arguments[1:]
    return parser.parse_args_into_dataclasses(arguments)


def read_recipe(path: Path, known: set[str]) -> dict[str, Any]:
    """What a YAML or JSON file (which is YAML too) sets."""
    if not path.is_file():
        raise ValueError(f"the recipe must be a file, got {path}.")
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must hold names and values of arguments, got {type(recipe).__name__}.")
    unknown = sorted(set(recipe) - known)
    if unknown:
        raise ValueError(f"{path} must name arguments only, got {', '.join(unknown)}.")
    return recipe


if __name__ == "__main__":
    sys.exit(main())
