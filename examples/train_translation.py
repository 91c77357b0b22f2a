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


def main() -> int:
    sys.argv.insert(1, "train")
    return cli.main()


if __name__ == "__main__":
    sys.exit(main())
