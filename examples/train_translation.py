"""Train a translator from parallel text and nothing else.

    python examples/train_translation.py --source_file train.en --target_file train.de \\
        --validation_source_file val.en --validation_target_file val.de \\
        --test_source_file test.en --test_target_file test.de --output_dir outputs/en-de
    python examples/train_translation.py recipe.yaml --seed 2     # a YAML or JSON file, and what differs from it
    accelerate launch examples/train_translation.py …             # on several devices

The same command resumes a run that was stopped, in whatever way.
"""

import json
import logging
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from modeling_random_transformer.utils.command_line import print_error

if TYPE_CHECKING:
    from modeling_random_transformer.training import DataArguments, ModelArguments, TranslationTrainingArguments

NAME = "train_translation.py"
INTERRUPTED, TERMINATED = 128 + signal.SIGINT, 128 + signal.SIGTERM


def main() -> int:
    signal.signal(signal.SIGTERM, terminate)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        return train(sys.argv[1:])
    except (ValueError, FloatingPointError, OSError) as error:
        print_error(NAME, " ".join(str(error).split()))
        return 2
    except KeyboardInterrupt:
        print_error(NAME, "interrupted; the same command resumes the run.")
        return INTERRUPTED


def terminate(*_: Any) -> NoReturn:
    """End as on an exception, so that temporary files are removed."""
    sys.exit(TERMINATED)


def train(arguments: list[str]) -> int:
    from modeling_random_transformer.training import train_translation  # takes seconds

    data, model, args = parse(arguments)
    result = train_translation(data, model, args)
    if args.process_index == 0:
        for split, metrics in result.scores.items():
            for name, values in metrics.items():
                print(f"{split} {name} {values['score']:.2f} {values['signature']}")
        print(f"The model is in {result.folder}.")
    return 0


def parse(arguments: list[str]) -> "tuple[DataArguments, ModelArguments, TranslationTrainingArguments]":
    """The arguments of the file named first, if there is one, and those of the command line, which override it.

    Raises:
        ValueError: the file is missing or is not a mapping, or an argument or its value is invalid.
    """
    from transformers import HfArgumentParser

    from modeling_random_transformer.training import DataArguments, ModelArguments, TranslationTrainingArguments

    class Parser(HfArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise ValueError(message)

    parser = Parser((DataArguments, ModelArguments, TranslationTrainingArguments), allow_abbrev=False)
    if arguments and Path(arguments[0]).suffix in (".yaml", ".yml", ".json"):
        recipe = read_recipe(Path(arguments[0]), {action.dest for action in parser._actions})
        arguments = [*as_flags(recipe), *arguments[1:]]
    *parsed, unknown = parser.parse_args_into_dataclasses(arguments, return_remaining_strings=True)
    if unknown:
        raise ValueError(f"arguments must be those that --help lists, got {' '.join(unknown)}.")
    return parsed[0], parsed[1], parsed[2]


def read_recipe(path: Path, known: set[str]) -> dict[str, Any]:
    """What a YAML or JSON file (which is YAML too) sets."""
    import yaml

    if not path.is_file():
        raise ValueError(f"the recipe must be a file, got {path}.")
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} must be YAML or JSON, got {type(error).__name__}: {error}") from error
    if not isinstance(recipe, dict):
        raise ValueError(f"{path} must hold names and values of arguments, got {type(recipe).__name__}.")
    unknown = sorted(str(name) for name in recipe if name not in known)
    if unknown:
        raise ValueError(f"{path} must name arguments only, got {', '.join(unknown)}.")
    return recipe


def as_flags(recipe: dict[str, Any]) -> list[str]:
    """The values of a recipe as flags, so that both are checked alike; a value of null leaves the default."""
    flags = []
    for name, value in recipe.items():
        if isinstance(value, list):
            flags += [f"--{name}", *map(str, value)]
        elif value is not None:
            flags.append(f"--{name}={json.dumps(value) if isinstance(value, dict) else value}")
    return flags


if __name__ == "__main__":
    sys.exit(main())
