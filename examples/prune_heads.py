"""Prune the attention heads of a trained model, and draw how BLEU depends on the share of pruned heads.

    python examples/quickstart.py     # trains the model, in about a minute
    python examples/prune_heads.py    # prunes it; writes outputs/pruning.png
    python examples/prune_heads.py --model FOLDER --source_file test.en --target_file test.es

Half of the sentences are for the importance of the heads, the other half for the scores. The model is not changed.
docs/explanation/pruning.md explains the result.

Exit status: 0 on success; 2 if an argument is invalid.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from modeling_random_transformer.commands.command_line import (
    Parser,
    existing_file,
    print_error,
    require_random_transformer_folder,
)
from modeling_random_transformer.data import ParallelLine, ParallelText
from modeling_random_transformer.inference.loading import load_translator
from tutorials.pruning import measure_pruning, show_pruning
from tutorials.training_helpers import Pairs, check_seed

SCRIPT = "prune_heads.py"
MIN_PAIRS = 4


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # more threads do not speed up models this small
    try:
        model, tokenizer = load_translator(args.model)
        pairs = read_pairs(args.source_file, args.target_file)
        half = len(pairs) // 2
        result = measure_pruning(model, tokenizer, pairs[:half], pairs[half:], args.seed)
        args.output.parent.mkdir(parents=True, exist_ok=True)
        show_pruning(result, args.output)
    except (ValueError, OSError) as error:
        print_error(SCRIPT, str(error))
        return 2
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(SCRIPT, __doc__)
    parser.add_argument(
        "--model",
        type=require_random_transformer_folder,
        default="outputs/quickstart",
        metavar="FOLDER",
        help="a trained model and its tokenizer; default: %(default)s",
    )
    parser.add_argument(
        "--source_file", type=existing_file, metavar="FILE", help="held-out sources; default: data/test.en of the model"
    )
    parser.add_argument("--target_file", type=existing_file, metavar="FILE", help="their translations, line by line")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/pruning.png"), metavar="PNG", help="plot; default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed of the random orders; default: %(default)s")
    args = parser.parse_args(argv)
    if (args.source_file is None) != (args.target_file is None):
        parser.error(
            f"--source_file and --target_file must be given together, got {args.source_file} and {args.target_file}."
        )
    if args.source_file is None:
        args.source_file, args.target_file = (args.model / "data" / f"test.{language}" for language in ("en", "es"))
    try:
        check_seed(args.seed)
    except ValueError as error:
        parser.error(str(error))
    return args


def read_pairs(source: Path, target: Path) -> Pairs:
    """The valid pairs of two aligned files."""
    lines = [line for line in ParallelText(source, target).lines() if isinstance(line, ParallelLine)]
    if len(lines) < MIN_PAIRS:
        raise ValueError(f"--source_file and --target_file must have at least {MIN_PAIRS} pairs, got {len(lines)}.")
    return [(line.source, line.target) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
