"""Answer questions about the Transformer by experiments: the exercises of "The Random Transformer", and others.

    python examples/exercises.py      # list the questions
    python examples/exercises.py 3    # run the third experiment

In a terminal, the command asks for your prediction first. Each experiment takes less than a minute on two CPU cores.
Plots are saved in --output_dir. The answers are in docs/explanation/exercises.md. Some experiments examine the model of
`python examples/quickstart.py`.

Exit status: 0 on success; 2 if an argument is invalid.
"""

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple


class Exercise(NamedTuple):
    """A question, the module of `tutorials/exercises` that answers it, and what to predict before.

    The module is imported when the exercise runs. Its `experiment` takes a random seed and, if `needs_model`, the
    folder of the quickstart's model. `show` prints the result and saves plots in a folder.
    """

    question: str
    module: str
    predict: str
    needs_model: bool = False


EXERCISES = {
    1: Exercise(
        "What is the purpose of the positional encoding?",
        "positions",
        "Eight tokens go through an encoder without positions, then the same tokens in reverse order. How "
        "do the two results differ? And can a model without positions learn to reverse six symbols?",
    ),
    2: Exercise(
        "How does self-attention differ from encoder-decoder attention?",
        "attention",
        "The source has 7 tokens, the target 4. What are the shapes of the weights of the three kinds of "
        "attention? Which of their keys change if only the source changes?",
    ),
    3: Exercise(
        "What happens if the attention dimension is too small? And if it is too large?",
        "width",
        "A head has to find 64 keys, each for its own query. How many does it find if queries and keys have"
        " a single number? How wide must they be to find all?",
    ),
    4: Exercise(
        "What is the structure of a feed-forward layer?",
        "feed_forward",
        "Which share of the parameters of the paper's base model is in its feed-forward networks: a tenth, "
        "a quarter, or more?",
    ),
    5: Exercise(
        "Why is the decoder slower than the encoder?",
        "speed",
        "Encoder and decoder process 128 tokens each. How many passes does each need, and how many "
        "positions are computed without a cache?",
    ),
    6: Exercise(
        "What are residual connections and layer normalization for?",
        "depth",
        "A random encoder has 24 layers. What happens to the size of its states without residual "
        "connections and norms, and what with residual connections only?",
    ),
    7: Exercise(
        "How do we get from the decoder's output to probabilities?",
        "output",
        "The most probable word has probability 0.34. What happens to it, and to the order of the words, at"
        " temperature 0.25, and at 4?",
    ),
    8: Exercise(
        "Why is it a problem to pick the most probable next token every time?",
        "greedy",
        '"good morning" has probability 0.4, and each of six sentences "have a … day" has 0.1. Which '
        "sentence does greedy search find, and which beam search?",
    ),
    9: Exercise(
        "Why self-attention, and not recurrence or convolution?",
        "complexity",
        "How many layers of convolution with k = 3 connect the first of 256 tokens with the last? How many "
        "steps of recurrence, how many layers of attention?",
    ),
    10: Exercise(
        "What do the heads do, and why several?",
        "head_roles",
        "The translator has 24 heads. Do you expect heads that look at the previous word, at the noun "
        "of an article, at the translated word? To name the tokens at two places, does one wide head "
        "suffice?",
        needs_model=True,
    ),
    11: Exercise(
        "What happens without feed-forward networks, residual connections, positions or soft attention?",
        "ablations",
        "Four parts are removed from a trained translator, one at a time: feed-forward networks, residual "
        "connections, positions, soft attention. Order them by the damage.",
        needs_model=True,
    ),
    12: Exercise(
        "Which inputs excite a unit of the feed-forward network, and what does it add?",
        "key_value_memory",
        "A unit of the feed-forward network is excited by some inputs. Will they share the current token or"
        " the next one? Does this differ between the first and the last layer?",
        needs_model=True,
    ),
    13: Exercise(
        "How do words become numbers, and what do embeddings contain?",
        "word_vectors",
        "The model has never been told what gender is. Can the gender of a Spanish noun be read from its "
        "vector? And from that of an *English* noun?",
        needs_model=True,
    ),
    14: Exercise(
        "Words, characters or subwords?",
        "subwords",
        "With 300 tokens for two languages, which cut is best: words, characters or subwords? What is the "
        "share of unknown words?",
    ),
    15: Exercise(
        "Why sinusoids, and what happens beyond the training length?",
        "sinusoids",
        "Trained on at most 16 tokens, what does a model do at position 40: with learned positions, and "
        "with sinusoids?",
    ),
    16: Exercise(
        "How can attention process long inputs?",
        "long_inputs",
        "Each token attends to 8 neighbors only, in two layers. From how far back can it copy a symbol?",
    ),
    17: Exercise(
        "How much can a model be compressed?",
        "compression",
        "Which costs more quality: storing all weights in 8 bits, or removing a quarter of the heads?",
        needs_model=True,
    ),
    18: Exercise(
        "How does a network learn, and why does it need an activation function?",
        "gradient_descent",
        "The learning rates 0.01, 0.3 and 1.05 differ by a factor of a hundred. Which converge in 60 steps?"
        " What is the best fit of two linear layers to a bent line?",
    ),
    19: Exercise(
        "What changes if the input is a picture instead of a text?",
        "patches",
        "Which part of a Transformer must change so that it reads pictures? What happens if the patches of "
        "each picture are shuffled?",
    ),
    20: Exercise(
        "Why is the embedding matrix also the output layer?",
        "weight_tying",
        "A model uses one matrix for embedding and output, another one two. Which learns more in the same "
        "number of steps? Is the second matrix similar to the first?",
    ),
    21: Exercise(
        "What are gamma and beta of layer normalization for?",
        "norm_parameters",
        "Gamma and beta are fixed to 1 and 0. Does a model still learn to reverse six symbols?",
    ),
    22: Exercise(
        "Why layer and not batch normalization?",
        "batch_norm",
        "In a batch of 32 sentences, 31 are replaced. Does the result of the remaining one change, with "
        "layer and with batch normalization? What happens to a single sentence?",
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    if not argv:  # checked before the imports, which take seconds
        for number, exercise in EXERCISES.items():
            print(f"{number}. {exercise.question}")
        return 0
    from tutorials.scripts import exit_status

    return exit_status(lambda: run(argv), "exercises.py")


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
    prediction = ask(exercise.predict)
    result = module.experiment(args.seed, args.model) if exercise.needs_model else module.experiment(args.seed)
    module.show(result, args.output_dir)
    if prediction:
        console.print(f"\nYour prediction: {prediction}", style="bold", soft_wrap=True)


def ask(question: str) -> str:
    """The reader's prediction, if a terminal can ask for one."""
    from tutorials.report import console

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ""
    console.print(question, soft_wrap=True)
    return console.input("Your prediction (Enter to skip): ").strip()


def parse_arguments(argv: Sequence[str]) -> argparse.Namespace:
    from tutorials.scripts import script_parser
    from tutorials.training_helpers import add_seed

    parser = script_parser("exercises.py", __doc__)
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
