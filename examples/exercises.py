"""The eight exercises of "The Random Transformer", answered by experiments with this model.

    python examples/exercises.py      # lists the questions
    python examples/exercises.py 3    # runs the experiment that answers the third

Each takes less than a minute on two CPU cores; docs/exercises.md has the answers in words. Pictures go to --output_dir.
Exits with 0; with 2 if an argument is not as it should be.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from tutorials.exercises_attention import compare_attentions, show_attentions
from tutorials.exercises_depth import compare_depths, show_depths
from tutorials.exercises_feed_forward import examine_feed_forward, show_feed_forward
from tutorials.exercises_greedy import compare_searches, show_searches
from tutorials.exercises_output import examine_output, show_output
from tutorials.exercises_positions import compare_positions, show_positions
from tutorials.exercises_speed import compare_speeds, show_speeds
from tutorials.exercises_width import compare_widths, show_widths
from tutorials.quickstart_report import console

from modeling_random_transformer.utils.command_line import Parser


class Exercise(NamedTuple):
    """A question of the seed, the experiment that answers it (from a seed of its randomness), and what shows it."""

    question: str
    run: Callable[[int], Any]
    show: Callable[[Any, Path], None]


EXERCISES = {
    1: Exercise("What is the purpose of the positional encoding?", compare_positions, show_positions),
    2: Exercise("How does self-attention differ from encoder-decoder attention?", compare_attentions, show_attentions),
    3: Exercise(
        "What happens if the attention dimension is too small? And if it is too large?", compare_widths, show_widths
    ),
    4: Exercise("What is the structure of a feed-forward layer?", examine_feed_forward, show_feed_forward),
    5: Exercise("Why is the decoder slower than the encoder?", compare_speeds, show_speeds),
    6: Exercise("What are residual connections and layer normalization for?", compare_depths, show_depths),
    7: Exercise("How do we get from the decoder's output to probabilities?", examine_output, show_output),
    8: Exercise(
        "Why is it a problem to pick the most probable next token every time?", compare_searches, show_searches
    ),
}


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    if args.exercise is None:
        for number, exercise in EXERCISES.items():
            console.print(f"{number}. {exercise.question}")
        return 0
    prepare_libraries()
    question, run, show = EXERCISES[args.exercise]
    console.print(f"{args.exercise}. {question}", style="bold", end="\n\n", soft_wrap=True)
    show(run(args.seed), args.output_dir)
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("exercises.py", __doc__)
    parser.add_argument("exercise", nargs="?", type=int, metavar="N", help="from 1 to 8; without it, list them")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/exercises"), help="default: %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    args = parser.parse_args(arguments)
    if args.exercise is not None and args.exercise not in EXERCISES:
        parser.error(f"N must be from 1 to {len(EXERCISES)}, got {args.exercise}.")
    if not 0 <= args.seed < 2**32:
        parser.error(f"--seed must be an integer from 0 to {2**32 - 1}, got {args.seed}.")
    try:
        if args.exercise is not None:  # better now than after the training
            args.output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--output_dir must be a folder that can be written to, got {args.output_dir}: {error}.")
    return args


def prepare_libraries() -> None:
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)  # so small models keep one core busy: a second one would mostly wait for the first


if __name__ == "__main__":
    sys.exit(main())
