"""Visualize how a model translates a sentence, as an HTML file that works offline; or its architecture, as an SVG.

    random-transformer explore FOLDER "a sentence"                     # writes outputs/explorer.html
    random-transformer explore FOLDER "a sentence" --output page.html --num_beams 6
    random-transformer explore --architecture FOLDER                   # writes outputs/architecture.svg

The page shows all attention maps, the beam search as a tree, the next-token distribution of each step at any
temperature, the position encodings, and the contribution of each layer to the residual stream. The figure of the
architecture is Figure 1 of the paper with the names, shapes and parameter counts of the model's modules. It needs only
the config.json of any model of this package, also of a classifier or a language model.

Exit status: 0 on success; 1 if the model's weights are not finite; 2 if an argument is invalid.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import transformers

from ..inference.loading import load_translator
from ..inspection.architecture import draw, model_without_weights
from ..inspection.explorer import explore
from ..utils.atomic_files import write_atomically
from .command_line import (
    Parser,
    configuration_folder,
    positive_integer,
    require_random_transformer_folder,
    run_command,
)

PROGRAM = "random-transformer explore"
TEMPLATE = Path(__file__).parents[1] / "inspection" / "explorer.html"


def main(argv: Sequence[str] | None = None) -> int:
    """Write the page or the figure. Returns the exit status, see `run_command`."""
    arguments = parse_arguments(argv)
    return run_command(lambda: run(arguments), PROGRAM)


def run(args: argparse.Namespace) -> None:
    """Write the page or the figure, and print its size."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    content = (draw(model_without_weights(args.architecture)) if args.architecture else explorer_page(args)).encode()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(args.output, [content])
    size = f"{len(content) / 1e6:.1f} MB" if len(content) > 1e5 else f"{len(content) / 1e3:.0f} kB"
    print(f"Wrote {args.output} ({size}). Open it in a browser.")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(PROGRAM, __doc__)
    parser.add_argument(
        "model", nargs="?", type=require_random_transformer_folder, metavar="FOLDER", help="a saved translation model"
    )
    parser.add_argument("sentence", nargs="?", help="the sentence to translate")
    parser.add_argument(
        "--architecture",
        type=configuration_folder,
        metavar="FOLDER",
        help="draw the architecture of this model instead; no sentence is given",
    )
    parser.add_argument(
        "--output",
        type=Path,
        help="file to write; default: outputs/explorer.html, or outputs/architecture.svg with --architecture",
    )
    parser.add_argument("--num_beams", type=positive_integer, default=4, metavar="N", help="beam size")
    parser.add_argument("--max_new_tokens", type=positive_integer, default=128, metavar="N", help="most output tokens")
    args = parser.parse_args(argv)
    if args.architecture and args.model:
        parser.error(f"--architecture must be used without a sentence and another folder, got {str(args.model)!r}.")
    if not args.architecture:
        if args.sentence is None:
            parser.error("a folder and a sentence must be given, or --architecture with a folder.")
        if not args.sentence.strip():
            parser.error("the sentence must not be empty.")
    args.output = args.output or Path("outputs", "architecture.svg" if args.architecture else "explorer.html")
    if args.output.is_dir():
        parser.error(f"--output must be a file, got the folder {args.output}.")
    if args.architecture and args.output.suffix != ".svg":
        parser.error(f"--output must be an .svg file with --architecture, got {args.output}.")
    return args


def explorer_page(args: argparse.Namespace) -> str:
    """Translate the sentence with the model of the arguments, and render the page."""
    model, tokenizer = load_translator(args.model)
    return render(explore(model, tokenizer, args.sentence, args.num_beams, args.max_new_tokens))


def render(data: dict[str, Any]) -> str:
    """The page with the data as JSON. `<` is escaped, so that no text can close the script element.

    Raises:
        ValueError: plotly is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs  # the drawing of the architecture does not need it
    except ImportError as error:
        raise ValueError("the page requires plotly: pip install 'random-transformer[explore]'.") from error
    text = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    before, after = TEMPLATE.read_text(encoding="utf-8").split("/* plotly.js */")
    middle, end = after.split("/* data */")
    return before + get_plotlyjs() + middle + text + end
