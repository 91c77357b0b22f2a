"""Convert a MarianMT folder: the same as `random-transformer convert marian`.

python examples/convert_marian.py opus-mt-en-de --output outputs/en-de
"""

from collections.abc import Sequence

from modeling_random_transformer.conversion import command
from modeling_random_transformer.utils.command_line import run_script


def main(argv: Sequence[str] | None = None) -> int:
    return command.run_marian(argv, "convert_marian.py")


if __name__ == "__main__":
    run_script(main)
