"""Answer questions about the Transformer by experiments: the exercises of "The Random Transformer", and others.

    python examples/exercises.py      # list the questions
    python examples/exercises.py 3    # run the third experiment

Each experiment takes less than a minute on two CPU cores. Plots are saved in --output_dir. The answers are in
docs/explanation/exercises.md. Some experiments examine the model of `python examples/quickstart.py`.

Exit status: 0 on success; 2 if an argument is invalid.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Exercise(NamedTuple):
    """A question, and the module of `tutorials/exercises` that answers it, imported when the exercise runs.

    Its `experiment` takes a random seed and, if `needs_model`, the folder of the quickstart's model. `show` prints the
    result and saves plots in a folder.
    """

    question: str
    module: str
    needs_model: bool = False


EXERCISES = {
    1: Exercise("What is the purpose of the positional encoding?", "positions"),
    2: Exercise("How does self-attention differ from encoder-decoder attention?", "attention"),
    3: Exercise("What happens if the attention dimension is too small? And if it is too large?", "width"),
    4: Exercise("What is the structure of a feed-forward layer?", "feed_forward"),
    5: Exercise("Why is the decoder slower than the encoder?", "speed"),
    6: Exercise("What are residual connections and layer normalization for?", "depth"),
    7: Exercise("How do we get from the decoder's output to probabilities?", "output"),
    8: Exercise("Why is it a problem to pick the most probable next token every time?", "greedy"),
    9: Exercise("Why self-attention, and not recurrence or convolution?", "complexity"),
    10: Exercise("What do the heads do, and why several?", "head_roles", needs_model=True),
    11: Exercise(
        "What happens without feed-forward networks, residual connections, positions or soft attention?",
        "ablations",
        needs_model=True,
    ),
    12: Exercise(
        "Which inputs excite a unit of the feed-forward network, and what does it add?",
        "key_value_memory",
        needs_model=True,
    ),
    13: Exercise("How do words become numbers, and what do embeddings contain?", "word_vectors", needs_model=True),
    14: Exercise("Words, characters or subwords?", "subwords"),
    15: Exercise("Why sinusoids, and what happens beyond the training length?", "sinusoids"),
    16: Exercise("How can attention process long inputs?", "long_inputs"),
    17: Exercise("How much can a model be compressed?", "compression", needs_model=True),
    18: Exercise("How does a network learn, and why does it need an activation function?", "gradient_descent"),
    19: Exercise("What changes if the input is a picture instead of a text?", "patches"),
}


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv:  # before the imports, which take seconds
        for number, exercise in EXERCISES.items():
            print(f"{number}. {exercise.question}")
        return 0
    from modeling_random_transformer.commands.command_line import run_command

    return run_command(lambda: run(argv), "exercises.py")


def run(argv: Sequence[str]) -> None:
    """Run an exercise.

    Raises:
        ValueError: an argument is invalid, or the exercise needs the quickstart's model and the folder has none.
    """
    from tutorials.report import console
    from tutorials.training_helpers import check_writable, configure_libraries

    args = parse_arguments(argv)
    exercise = EXERCISES[args.exercise]
    if exercise.needs_model:
        check_model(args.model)
    check_writable(args.output_dir)
    module = importlib.import_module(f"tutorials.exercises.{exercise.module}")
    configure_libraries(args.seed)
    console.print(f"{args.exercise}. {exercise.question}", style="bold", end="\n\n", soft_wrap=True)
    result = module.experiment(args.seed, args.model) if exercise.needs_model else module.experiment(args.seed)
    module.show(result, args.output_dir)


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    from modeling_random_transformer.commands.command_line import Parser
    from tutorials.training_helpers import add_seed

    parser = Parser("exercises.py", __doc__)
    help_text = "number of an exercise; without it: list the questions"
    parser.add_argument("exercise", type=int, choices=EXERCISES, metavar="N", help=help_text)
    model = Path("outputs/quickstart")
    parser.add_argument("--model", type=Path, default=model, help="the trained model that some exercises examine")
    parser.add_argument("--output_dir", type=Path, default=Path("outputs/exercises"), help="folder of the plots")
    add_seed(parser, default=0)
    return parser.parse_args(argv)


def check_model(folder: Path) -> None:
    """Raise a ValueError if the folder has no trained model."""
    from modeling_random_transformer.commands.command_line import model_folder

    try:
        model_folder(str(folder))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--model {error} `python examples/quickstart.py` trains one.") from error


if __name__ == "__main__":
    sys.exit(main())
