"""Make a Random Transformer of a fairseq `transformer` checkpoint, its dictionaries and its BPE codes.

    python examples/convert_fairseq.py checkpoint_best.pt --output outputs/de-en \\
        --source_dict dict.de.txt --target_dict dict.en.txt --source_codes bpecodes

Prints what became what. Exits with 0; with 2 if the checkpoint cannot be converted. Nothing in the checkpoint is run.
fairseq is not needed, so its model is not run either to compare with: the test of this conversion compares with a
forward pass of its own.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import transformers
from rich.console import Console

from modeling_random_transformer.conversion import convert_fairseq
from modeling_random_transformer.conversion.tables import report_tables
from modeling_random_transformer.utils.command_line import Parser, print_error, run_script


def main(arguments: Sequence[str] | None = None) -> int:
    args = vars(parse_arguments(arguments))
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        report = convert_fairseq(args.pop("checkpoint"), args.pop("output"), **args)
    except (ValueError, OSError) as error:
        print_error("convert_fairseq.py", str(error))
        return 2
    Console(markup=False).print(report_tables(report), "The original cannot run here, so no logits were compared.")
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("convert_fairseq.py", __doc__)
    parser.add_argument("checkpoint", type=Path, help="a .pt file")
    parser.add_argument("--output", type=Path, required=True, metavar="FOLDER", help="a new or an empty folder")
    parser.add_argument("--source_dict", type=Path, metavar="FILE", help="dict.<language>.txt")
    parser.add_argument("--target_dict", type=Path, metavar="FILE", help="default: the source's")
    parser.add_argument("--source_codes", type=Path, metavar="FILE", help="of subword-nmt or fastBPE")
    parser.add_argument("--target_codes", type=Path, metavar="FILE", help="default: the source's")
    parser.add_argument("--num_heads", type=int, metavar="N", help="where the checkpoint does not say it")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    run_script(main)
