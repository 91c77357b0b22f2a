"""Draw the modules of a model as in Figure 1 of the paper, with their names, shapes and parameter counts, as an SVG.

    python examples/draw_architecture.py outputs/quickstart                   # writes outputs/architecture.svg
    python examples/draw_architecture.py FOLDER --output figure.svg

Only the config.json of the folder is read, which may be that of any model of this package, also of a classifier or a
language model.

Exit status: 0 on success; 2 if an argument or the configuration is invalid.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from modeling_random_transformer.base.files import write_atomically
from modeling_random_transformer.commands.command_line import model_folder
from tutorials.architecture import draw, model_without_weights
from tutorials.scripts import exit_status, script_parser


def main(argv: Sequence[str] | None = None) -> int:
    return exit_status(lambda: run(parse_arguments(argv)), "draw_architecture.py")


def run(args: argparse.Namespace) -> None:
    """Raises ValueError if the configuration is invalid."""
    figure = draw(model_without_weights(args.model)).encode()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(args.output, [figure])
    print(f"Wrote {args.output}. Open it in a browser.")


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = script_parser("draw_architecture.py", __doc__)
    parser.add_argument("model", type=model_folder, metavar="FOLDER", help="a saved model, or its config.json")
    parser.add_argument("--output", type=Path, default=Path("outputs/architecture.svg"), help="SVG file to write")
    args = parser.parse_args(argv)
    if args.output.is_dir() or args.output.suffix != ".svg":
        raise ValueError(f"--output must be an .svg file, got {args.output}.")
    return args


if __name__ == "__main__":
    sys.exit(main())
