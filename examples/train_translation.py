"""Train a translator from parallel text and nothing else.

    python examples/train_translation.py --source_file train.en --target_file train.de \\
        --validation_source_file val.en --validation_target_file val.de \\
        --test_source_file test.en --test_target_file test.de --output_dir outputs/en-de
    python examples/train_translation.py recipe.yaml        # the same arguments from a YAML or JSON file
    accelerate launch examples/train_translation.py …       # on several devices

A run that was stopped, in whatever way, goes on with the same command.
"""

import logging
import sys
from pathlib import Path

from transformers import HfArgumentParser

from modeling_random_transformer.training import TranslationTrainingArguments
from modeling_random_transformer.training.arguments import DataArguments, ModelArguments
from modeling_random_transformer.training.run import train_translation


def main() -> int:
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    try:
        data, model, args = parse(sys.argv[1:])
        result = train_translation(data, model, args)
    except (ValueError, FloatingPointError, OSError) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    for split, metrics in result.scores.items():
        for name, values in metrics.items():
            print(f"{split} {name} {values['score']:.2f} {values['signature']}")
    print(f"The model is in {result.folder}.")
    return 0


def parse(arguments: list[str]) -> tuple[DataArguments, ModelArguments, TranslationTrainingArguments]:
    """The command line's arguments, or those of the one file that it names."""
    parser = HfArgumentParser((DataArguments, ModelArguments, TranslationTrainingArguments))
    if len(arguments) == 1 and Path(arguments[0]).suffix in (".yaml", ".yml"):
        return parser.parse_yaml_file(arguments[0])
    if len(arguments) == 1 and Path(arguments[0]).suffix == ".json":
        return parser.parse_json_file(arguments[0])
    return parser.parse_args_into_dataclasses(arguments)


if __name__ == "__main__":
    sys.exit(main())
