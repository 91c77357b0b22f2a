"""Convert a model of Marian in its own format: the same as `random-transformer convert marian-npz`.

python examples/convert_marian_npz.py model.npz --output outputs/en-de
"""

from collections.abc import Sequence

from modeling_random_transformer.conversion import command
from modeling_random_transformer.utils.command_line import run_script


def main(argv: Sequence[str] | None = None) -> int:
    return command.run_marian_npz(argv, "convert_marian_npz.py")


if __name__ == "__main__":
    run_script(main)
