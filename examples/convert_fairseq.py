"""Convert a fairseq checkpoint: the same as `random-transformer convert fairseq`.

    python examples/convert_fairseq.py checkpoint_best.pt --output outputs/de-en \\
        --source_dict dict.de.txt --target_dict dict.en.txt --source_codes bpecodes
"""

from collections.abc import Sequence

from modeling_random_transformer.conversion import command
from modeling_random_transformer.utils.command_line import run_script


def main(argv: Sequence[str] | None = None) -> int:
    return command.run_fairseq(argv, "convert_fairseq.py")


if __name__ == "__main__":
    run_script(main)
