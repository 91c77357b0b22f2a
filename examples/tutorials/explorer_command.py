"""Visualize how a model translates a sentence: one HTML file that works offline.

    random-transformer explore FOLDER "a sentence"                     # writes outputs/explorer.html
    random-transformer explore FOLDER "a sentence" --output page.html --num_beams 6

The page shows all attention maps, the beam search as a tree, the next-token distribution of each step at any
temperature, the position encodings, and the contribution of each layer to the residual stream.
`python examples/explorer.py` takes the same arguments.

Exit status: 0 on success; 1 if the model's weights are not finite; 2 if an argument is invalid.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers
from plotly.offline import get_plotlyjs

from modeling_random_transformer.loading import check_finite, load_translator
from modeling_random_transformer.utils.atomic_files import write_atomically
from modeling_random_transformer.utils.command_line import (
    Parser,
    print_error,
    require_random_transformer_folder,
)

from .explorer_data import explore

SCRIPT = "explorer.py"
TEMPLATE = Path(__file__).parent / "explorer.html"


def main(argv: Sequence[str] | None = None) -> int:
    args = parse_arguments(argv)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        model, tokenizer = load_translator(args.model)
        check_finite(model)
        page = render(explore(model, tokenizer, args.sentence, args.num_beams, args.max_new_tokens))
        args.output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(args.output, [page.encode()])
    except FloatingPointError as error:
        print_error(SCRIPT, str(error))
        return 1
    except (ValueError, OSError) as error:
        print_error(SCRIPT, str(error))
        return 2
    print(f"Wrote {args.output} ({len(page.encode()) / 1e6:.1f} MB). Open it in a browser.")
    return 0


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(SCRIPT, __doc__)
    parser.add_argument(
        "model", type=require_random_transformer_folder, metavar="FOLDER", help="a saved translation model"
    )
    parser.add_argument("sentence", help="the sentence to translate")
    parser.add_argument(
        "--output", type=Path, default=Path("outputs/explorer.html"), help="HTML file to write; default: %(default)s"
    )
    parser.add_argument("--num_beams", type=int, default=4, help="beam size; default: %(default)s")
    parser.add_argument("--max_new_tokens", type=int, default=128, help="maximum output length; default: %(default)s")
    args = parser.parse_args(argv)
    if not args.sentence.strip():
        parser.error("the sentence must not be empty.")
    for name in ("num_beams", "max_new_tokens"):
        if getattr(args, name) < 1:
            parser.error(f"--{name} must be a positive integer, got {getattr(args, name)}.")
    if args.output.is_dir():
        parser.error(f"--output must be a file, got the folder {args.output}.")
    return args


def render(data: dict[str, Any]) -> str:
    """The page with the data as JSON. `<` is escaped, so that no text can close the script element."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    before, after = TEMPLATE.read_text(encoding="utf-8").split("/* plotly.js */")
    middle, end = after.split("/* data */")
    return before + get_plotlyjs() + middle + text + end
