"""Train a translation model from parallel text.

    python examples/train_translation.py --source_file train.en --target_file train.de \\
        --validation_source_file val.en --validation_target_file val.de \\
        --test_source_file test.en --test_target_file test.de --output_dir outputs/en-de
    python examples/train_translation.py recipe.yaml --seed 2     # a YAML or JSON recipe, overridden by flags
    accelerate launch examples/train_translation.py …             # on several devices

The same command resumes an interrupted run. `--help` lists all arguments.
"""

import sys

from modeling_random_transformer import cli
from modeling_random_transformer.commands.command_line import run_script


def main() -> int:
    return cli.main(["train", *sys.argv[1:]])


if __name__ == "__main__":
    run_script(main)
