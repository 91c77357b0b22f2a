"""Answer questions about the Transformer by experiments: the exercises of "The Random Transformer", and others.

    python examples/exercises.py      # list the questions
    python examples/exercises.py 3    # run the third experiment

Each experiment takes less than a minute on two CPU cores. Plots are saved in --output_dir. The answers are in
docs/explanation/exercises.md. Some experiments examine the model of `python examples/quickstart.py`.

Exit status: 0 on success; 2 if an argument is invalid.
"""

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from modeling_random_transformer.utils.command_line import Parser, print_error, require_random_transformer_folder

from ..report import console
from ..training_helpers import check_seed, check_writable, configure_libraries
from .ablations import compare_ablations, show_ablations
from .attention import compare_attentions, show_attentions
from .complexity import compare_complexity, show_complexity
from .compression import compare_compressions, show_compressions
from .depth import compare_depths, show_depths
from .feed_forward import examine_feed_forward, show_feed_forward
from .gradient_descent import compare_descents, show_descents
from .greedy import compare_searches, show_searches
from .head_roles import examine_heads, show_roles
from .key_value_memory import examine_memories, show_memories
from .long_inputs import compare_long_attentions, show_long_attentions
from .output import examine_output, show_output
from .patches import examine_patches, show_patches
from .positions import compare_positions, show_positions
from .sinusoids import compare_encodings, show_encodings
from .speed import compare_speeds, show_speeds
from .subwords import compare_tokenizers, show_tokenizers
from .width import compare_widths, show_widths
from .word_vectors import examine_word_vectors, show_word_vectors


class Exercise(NamedTuple):
    """A question, the experiment that answers it, and the output of its result.

    Attributes:
        run: the experiment, for a random seed and, if `needs_model`, the folder of the quickstart's model.
        show: prints the result and saves plots in a folder.
    """

    question: str
    run: Callable[..., Any]
    show: Callable[[Any, Path], None]
    needs_model: bool = False


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
    9: Exercise("Why self-attention, and not recurrence or convolution?", compare_complexity, show_complexity),
    10: Exercise("What do the heads do, and why several?", examine_heads, show_roles, needs_model=True),
    11: Exercise(
        "What happens without feed-forward networks, residual connections, positions or soft attention?",
        compare_ablations,
        show_ablations,
        needs_model=True,
    ),
    12: Exercise(
        "Which inputs excite a unit of the feed-forward network, and what does it add?",
        examine_memories,
        show_memories,
        needs_model=True,
    ),
    13: Exercise(
        "How do words become numbers, and what do embeddings contain?",
        examine_word_vectors,
        show_word_vectors,
        needs_model=True,
    ),
    14: Exercise("Words, characters or subwords?", compare_tokenizers, show_tokenizers),
    15: Exercise("Why sinusoids, and what happens beyond the training length?", compare_encodings, show_encodings),
    16: Exercise("How can attention process long inputs?", compare_long_attentions, show_long_attentions),
    17: Exercise("How much can a model be compressed?", compare_compressions, show_compressions, needs_model=True),
    18: Exercise(
        "How does a network learn, and why does it need an activation function?", compare_descents, show_descents
    ),
    19: Exercise("What changes if the input is a picture instead of a text?", examine_patches, show_patches),
}


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    if args.exercise is None:
        for number, exercise in EXERCISES.items():
            console.print(f"{number}. {exercise.question}", soft_wrap=True)
        return 0
    configure_libraries(args.seed)
    exercise = EXERCISES[args.exercise]
    console.print(f"{args.exercise}. {exercise.question}", style="bold", end="\n\n", soft_wrap=True)
    try:
        result = exercise.run(args.seed, args.model) if exercise.needs_model else exercise.run(args.seed)
    except ValueError as error:  # a folder without the quickstart's model and data
        print_error("exercises.py", str(error))
        return 2
    exercise.show(result, args.output_dir)
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("exercises.py", __doc__)
    parser.add_argument(
        "exercise", nargs="?", type=int, metavar="N", help="number of an exercise; default: list the questions"
    )
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
    if args.exercise is not None and args.exercise not in EXERCISES:
        parser.error(f"N must be from 1 to {max(EXERCISES)}, got {args.exercise}.")
    try:
        check_seed(args.seed)
        if args.exercise is not None:
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
    try:
        require_random_transformer_folder(str(folder))
    except argparse.ArgumentTypeError as error:
        raise ValueError(f"--model {error}") from error
