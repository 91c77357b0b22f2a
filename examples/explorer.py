"""See inside a model as it translates a sentence: one HTML file, that opens from disk and needs no network.

    python examples/explorer.py FOLDER "a sentence"                    # writes outputs/explorer.html
    python examples/explorer.py FOLDER "a sentence" --output see.html --num_beams 6

The page shows every attention map, the beam search as a tree, the distribution of each next token at any temperature,
the position encodings, and what each layer does to the residual stream. Exits with 2 where an argument is not as it
should be, with 1 where the model's weights are not finite.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from plotly.offline import get_plotlyjs
from tutorials.explorer_data import explore

from modeling_random_transformer.utils.command_line import (
    Parser,
    check_finite,
    load_translator,
    print_error,
    require_random_transformer_folder,
    run_script,
)
from modeling_random_transformer.utils.files import write_atomically

TEMPLATE = Path(__file__).parent / "tutorials" / "explorer.html"


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_arguments(arguments)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, tokenizer = load_translator(args.model)
        check_finite(model)
        page = render(explore(model, tokenizer, args.sentence, args.num_beams, args.max_new_tokens))
        args.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.output, [page.encode()])
    except FloatingPointError as error:
        print_error("explorer.py", str(error))
        return 1
    except (ValueError, OSError) as error:
        print_error("explorer.py", str(error))
        return 2
    print(f"{args.output}: {len(page.encode()) / 1e6:.1f} MB, to be opened in a browser")
    return 0


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser("explorer.py", __doc__)
    parser.add_argument("model", type=require_random_transformer_folder, metavar="FOLDER", help="a saved translator")
    parser.add_argument("sentence", help="what it is to translate")
    parser.add_argument("--output", type=Path, default=Path("outputs/explorer.html"), help="default: %(default)s")
    parser.add_argument("--num_beams", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--max_new_tokens", type=int, default=128, help="default: %(default)s")
    args = parser.parse_args(arguments)
    if not args.sentence.strip():
        parser.error("the sentence must not be empty.")
    for name in ("num_beams", "max_new_tokens"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be a positive integer, got {getattr(args, name)}.")
    if args.output.is_dir():
        parser.error(f"--output must be a file, got the folder {args.output}.")
    return args


def render(found: dict[str, Any]) -> str:
    """The page. No text of the model or its user can end the element that holds the data."""
    data = json.dumps(found, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    template = TEMPLATE.read_text(encoding="utf-8")
    before, after = template.split("/* plotly.js */")
    middle, end = after.split("/* data */")
    return before + get_plotlyjs() + middle + data + end


if __name__ == "__main__":
    run_script(main)
