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

    Attributes:
        run: function of the experiment, for a random seed and, if `needs_model`, the folder of the quickstart's model.
        show: function that prints the result and saves plots in a folder.
    """

    question: str
    module: str
    run: str
    show: str
    needs_model: bool = False


EXERCISES = {
    1: Exercise("What is the purpose of the positional encoding?", "positions", "compare_positions", "show_positions"),
    2: Exercise(
        "How does self-attention differ from encoder-decoder attention?",
        "attention",
        "compare_attentions",
        "show_attentions",
    ),
    3: Exercise(
        "What happens if the attention dimension is too small? And if it is too large?",
        "width",
        "compare_widths",
        "show_widths",
    ),
    4: Exercise(
        "What is the structure of a feed-forward layer?", "feed_forward", "examine_feed_forward", "show_feed_forward"
    ),
    5: Exercise("Why is the decoder slower than the encoder?", "speed", "compare_speeds", "show_speeds"),
    6: Exercise("What are residual connections and layer normalization for?", "depth", "compare_depths", "show_depths"),
    7: Exercise("How do we get from the decoder's output to probabilities?", "output", "examine_output", "show_output"),
    8: Exercise(
        "Why is it a problem to pick the most probable next token every time?",
        "greedy",
        "compare_searches",
        "show_searches",
    ),
    9: Exercise(
        "Why self-attention, and not recurrence or convolution?", "complexity", "compare_complexity", "show_complexity"
    ),
    10: Exercise(
        "What do the heads do, and why several?", "head_roles", "examine_heads", "show_roles", needs_model=True
    ),
    11: Exercise(
        "What happens without feed-forward networks, residual connections, positions or soft attention?",
        "ablations",
        "compare_ablations",
        "show_ablations",
        needs_model=True,
    ),
    12: Exercise(
        "Which inputs excite a unit of the feed-forward network, and what does it add?",
        "key_value_memory",
        "examine_memories",
        "show_memories",
        needs_model=True,
    ),
    13: Exercise(
        "How do words become numbers, and what do embeddings contain?",
        "word_vectors",
        "examine_word_vectors",
        "show_word_vectors",
        needs_model=True,
    ),
    14: Exercise("Words, characters or subwords?", "subwords", "compare_tokenizers", "show_tokenizers"),
    15: Exercise(
        "Why sinusoids, and what happens beyond the training length?",
        "sinusoids",
        "compare_encodings",
        "show_encodings",
    ),
    16: Exercise(
        "How can attention process long inputs?", "long_inputs", "compare_long_attentions", "show_long_attentions"
    ),
    17: Exercise(
        "How much can a model be compressed?",
        "compression",
        "compare_compressions",
        "show_compressions",
        needs_model=True,
    ),
    18: Exercise(
        "How does a network learn, and why does it need an activation function?",
        "gradient_descent",
        "compare_descents",
        "show_descents",
    ),
    19: Exercise(
        "What changes if the input is a picture instead of a text?", "patches", "examine_patches", "show_patches"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv:  # before the imports, which take seconds
        for number, exercise in EXERCISES.items():
            print(f"{number}. {exercise.question}")
        return 0
    from modeling_random_transformer.commands.command_line import print_error
    from tutorials.report import console
    from tutorials.training_helpers import configure_libraries

    args = parse_arguments(argv)
    exercise = EXERCISES[args.exercise]
    module = importlib.import_module(f"tutorials.exercises.{exercise.module}")
    configure_libraries(args.seed)
    console.print(f"{args.exercise}. {exercise.question}", style="bold", end="\n\n", soft_wrap=True)
    try:
        arguments = (args.seed, args.model) if exercise.needs_model else (args.seed,)
        result = getattr(module, exercise.run)(*arguments)
    except ValueError as error:  # a folder without the quickstart's model and data
        print_error("exercises.py", str(error))
        return 2
    getattr(module, exercise.show)(result, args.output_dir)
    return 0


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    from modeling_random_transformer.commands.command_line import Parser
    from tutorials.training_helpers import check_seed, check_writable

    parser = Parser("exercises.py", __doc__)
    parser.add_argument("exercise", type=int, metavar="N", help="number of an exercise; without it: list the questions")
    parser.add_argument(
        "--model",
        type=Path,
        default=Path("outputs/quickstart"),
        metavar="FOLDER",
        help="the trained model that some exercises examine; default: %(default)s",
    )
    parser.add_argument(
        "--output_dir", type=Path, default=Path("outputs/exercises"), help="folder of the plots; default: %(default)s"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed; default: %(default)s")
    args = parser.parse_args(argv)
    if args.exercise not in EXERCISES:
        parser.error(f"N must be from 1 to {max(EXERCISES)}, got {args.exercise}.")
    try:
        check_seed(args.seed)
        check_model(args.exercise, args.model)
        check_writable(args.output_dir)
    except ValueError as error:
        parser.error(str(error))
    return args


def check_model(exercise: int, folder: Path) -> None:
    """Raise a ValueError if the exercise needs a trained model and the folder has none."""
    if not EXERCISES[exercise].needs_model:
        return
    if not (folder / "config.json").is_file():
        raise ValueError(
            f"--model must be a folder with a trained model, got {folder}: `python examples/quickstart.py` trains one."
        )
    from modeling_random_transformer.commands.command_line import require_random_transformer_folder

    try:
        require_random_transformer_folder(str(folder))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--model {error}") from error


if __name__ == "__main__":
    sys.exit(main())
