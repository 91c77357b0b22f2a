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

from modeling_random_transformer.commands.command_line import model_folder
from modeling_random_transformer.data import ParallelLine, ParallelText
from modeling_random_transformer.extras.parser import existing_file
from modeling_random_transformer.inference.loading import load_translator
from tutorials.pruning import measure_pruning, show_pruning
from tutorials.scripts import exit_status, script_parser
from tutorials.training_helpers import Pairs, add_seed

MIN_PAIRS = 4


def main(argv: Sequence[str] | None = None) -> int:
    return exit_status(lambda: run(parse_arguments(argv)), "prune_heads.py")


def run(args: argparse.Namespace) -> None:
    """Raises ValueError if the model or a file is invalid."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # more threads do not speed up models this small
    model, tokenizer = load_translator(args.model)
    pairs = read_pairs(args.source_file, args.target_file)
    half = len(pairs) // 2
    result = measure_pruning(model, tokenizer, pairs[:half], pairs[half:], args.seed)
    args.output.parent.mkdir(parents=True, exist_ok=True)
    show_pruning(result, args.output)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser("prune_heads.py", __doc__)
    parser.add_argument(
        "--model", type=model_folder, default="outputs/quickstart", help="a trained model and its tokenizer"
    )
    parser.add_argument(
        "--source_file", type=existing_file, help="held-out sources (default: data/test.en of the model)"
    )
    parser.add_argument("--target_file", type=existing_file, help="their translations, line by line")
    parser.add_argument("--output", type=Path, default=Path("outputs/pruning.png"), metavar="PNG", help="plot")
    add_seed(parser, default=0)
    args = parser.parse_args(argv)
    source, target = args.source_file, args.target_file
    if (source is None) != (target is None):
        raise ValueError(f"--source_file and --target_file must be given together, got {source} and {target}.")
    if source is None:
        args.source_file, args.target_file = (args.model / "data" / f"test.{language}" for language in ("en", "es"))
    return args


def read_pairs(source: Path, target: Path) -> Pairs:
    """The valid pairs of two aligned files."""
    lines = [line for line in ParallelText(source, target).lines() if isinstance(line, ParallelLine)]
    if len(lines) < MIN_PAIRS:
        raise ValueError(f"--source_file and --target_file must have at least {MIN_PAIRS} pairs, got {len(lines)}.")
    return [(line.source, line.target) for line in lines]


if __name__ == "__main__":
    sys.exit(main())
