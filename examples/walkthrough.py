"""Print the computations of a Transformer step by step: of the blog post's example, or of a saved model.

    python examples/walkthrough.py                              # "Hello World", compared with the blog post's numbers
    python examples/walkthrough.py --lang zh                    # 中文
    python examples/walkthrough.py --model FOLDER "a sentence"  # a saved model, from the tokens to the translation

The blog post is "The Random Transformer" by Omar Sanseviero. All values are recorded by
`modeling_random_transformer.extras.inspection` from the modules that are used for training and inference.

Exit status: 0 on success; 1 if a number differs from the blog post; 2 if an argument is invalid.
"""

import argparse
import sys
from collections.abc import Sequence

import transformers

from modeling_random_transformer.commands.command_line import model_folder
from modeling_random_transformer.extras.parser import positive_integer
from tutorials.scripts import exit_status, script_parser
from tutorials.walkthrough_blog import walkthrough_blog
from tutorials.walkthrough_display import LANGUAGES, Display
from tutorials.walkthrough_model import walkthrough_model


def main(argv: Sequence[str] | None = None) -> int:
    return exit_status(lambda: run(parse_arguments(argv)), "walkthrough.py")


def run(args: argparse.Namespace) -> int:
    """Raises ValueError if the model cannot be loaded, or has no such layer or head."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if not args.model:
        return 0 if walkthrough_blog(Display(args.lang, args.plain)) else 1
    display = Display(args.lang, args.plain, args.columns)
    walkthrough_model(display, args.model, args.sentence, args.layer, args.head)
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser("walkthrough.py", __doc__)
    parser.add_argument("sentence", nargs="?", help="the sentence to translate with --model")
    parser.add_argument("--model", type=model_folder, metavar="FOLDER", help="a saved model")
    parser.add_argument("--layer", type=int, default=0, help="layer to print with --model")
    parser.add_argument("--head", type=int, default=0, help="head to print with --model")
    parser.add_argument("--columns", type=positive_integer, default=6, help="maximum number of columns of a matrix")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language")
    parser.add_argument("--plain", action="store_true", help="no colors or lines")
    args = parser.parse_args(argv)
    if (args.model is None) != (args.sentence is None):
        raise ValueError(f"--model and a sentence must be given together, got {args.model} and {args.sentence!r}.")
    if args.sentence is not None and not args.sentence.strip():
        raise ValueError("the sentence must not be empty.")
    return args


if __name__ == "__main__":
    sys.exit(main())
