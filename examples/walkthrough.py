"""Walk through a Transformer number by number: the Random Transformer of the seed, or any model that you saved.

    python examples/walkthrough.py                              # "Hello World", with the seed's numbers beside ours
    python examples/walkthrough.py --lang zh                    # 中文
    python examples/walkthrough.py --model FOLDER "a sentence"  # a model of yours, from the words to the answer

Every number comes from the modules that train and serve, by `modeling_random_transformer.tracing`. Exits with 0; with 1
if a number of the seed is not met; with 2 if an argument is not as it should be.
"""

import argparse
import sys
from collections.abc import Sequence

import transformers
from tutorials.walkthrough_display import LANGUAGES, Display
from tutorials.walkthrough_model import walk_model
from tutorials.walkthrough_seed import walk_seed

from modeling_random_transformer.utils.command_line import Parser, print_error, require_random_transformer_folder


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if not args.model:
        return 0 if walk_seed(Display(args.lang, args.plain)) else 1
    try:
        walk_model(Display(args.lang, args.plain, args.columns), args.model, args.sentence, args.layer, args.head)
    except ValueError as error:
        print_error("walkthrough.py", str(error))
        return 2
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("walkthrough.py", __doc__)
    parser.add_argument("sentence", nargs="?", help="what the model is to translate")
    parser.add_argument(
        "--model",
        type=require_random_transformer_folder,
        metavar="FOLDER",
        help="a saved model, in place of the seed's",
    )
    parser.add_argument("--layer", type=int, default=0, help="of the model, the layer to show; default: %(default)s")
    parser.add_argument("--head", type=int, default=0, help="of the model, the head to show; default: %(default)s")
    parser.add_argument("--columns", type=int, default=6, help="of a wide matrix, those to show; default: %(default)s")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="default: %(default)s")
    parser.add_argument("--plain", action="store_true", help="neither colour nor lines")
    args = parser.parse_args(arguments)
    if (args.model is None) != (args.sentence is None):
        parser.error(f"--model FOLDER and a sentence go together, got {args.model} and {args.sentence!r}.")
    if args.sentence is not None and not args.sentence.strip():
        parser.error("the sentence must not be empty.")
    if args.columns < 1:
        parser.error(f"--columns must be a positive integer, got {args.columns}.")
    return args


if __name__ == "__main__":
    sys.exit(main())
