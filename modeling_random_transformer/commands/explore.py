"""Visualize how a model translates a sentence, as an HTML file that works offline; or its architecture, as an SVG.

    random-transformer explore FOLDER "a sentence"                     # writes outputs/explorer.html
    random-transformer explore FOLDER "a sentence" --output page.html --num_beams 6
    random-transformer explore --architecture FOLDER                   # writes outputs/architecture.svg

The page shows the next-token distribution of each step at any temperature, what each part of the decoder adds to the
logits, the predictions after each sub-layer, all attention maps, the candidates of the beam search, the residual
stream, and the position encodings. The figure of the architecture is Figure 1 of the paper with the names, shapes and
parameter counts of the model's modules. It needs only the config.json of any model of this package, also of a
classifier or a language model.

Exit status: 0 on success; 1 if the model's weights are not finite; 2 if an argument is invalid.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import transformers

from ..inference.loading import load_translator
from ..inspection.architecture import draw, model_without_weights
from ..inspection.explorer import explore
from ..utils.atomic_files import write_atomically
from ..utils.errors import reraise_as_value_error
from .command_line import Parser, model_folder

PACKAGE = Path(__file__).parents[1]
TEMPLATE, SEARCH_TREE = PACKAGE / "inspection" / "explorer.html", PACKAGE / "export" / "page" / "search_tree.js"


@dataclass(frozen=True)
class Arguments:
    """Arguments of `explore`.

    Args:
        model: a saved translation model
        sentence: the sentence to translate
        architecture: draw the architecture of this model instead; no sentence is given
        output: file to write (default: outputs/explorer.html, or outputs/architecture.svg with --architecture)
        num_beams: beam size
        max_new_tokens: most output tokens

    Raises:
        ValueError: arguments contradict each other.
    """

    model: Path | None = field(
        default=None,
        metadata={"positional": True, "nargs": "?", "type": model_folder, "metavar": "FOLDER"},
    )
    sentence: str = field(default="", metadata={"positional": True, "nargs": "?", "metavar": "sentence"})
    architecture: Path | None = field(default=None, metadata={"type": model_folder, "metavar": "FOLDER"})
    output: Path | None = None
    num_beams: int = 4
    max_new_tokens: int = 128

    def __post_init__(self) -> None:
        if (self.architecture is None) == (self.model is None or not self.sentence.strip()):
            given = [self.model, self.sentence, self.architecture]
            raise ValueError(f"a folder and a sentence, or --architecture with a folder, must be given, got {given}.")
        if self.path.is_dir() or (self.architecture and self.path.suffix != ".svg"):
            raise ValueError(f"--output must be a file, with --architecture an .svg file, got {self.path}.")

    @property
    def path(self) -> Path:
        """The file to write."""
        return self.output or Path("outputs", "architecture.svg" if self.architecture else "explorer.html")


def run(program: str, argv: Sequence[str]) -> None:
    """Write the page or the figure, and print its size."""
    arguments = Parser(program, __doc__).parse(Arguments, argv)
    transformers.logging.set_verbosity_error()  # warns about translations above max_position_embeddings
    folder = arguments.architecture or arguments.model or Path()
    if arguments.architecture:
        content = draw(model_without_weights(folder)).encode()
    else:
        model, tokenizer = load_translator(folder)
        search = {"num_beams": arguments.num_beams, "max_new_tokens": arguments.max_new_tokens}
        content = render(explore(model, tokenizer, arguments.sentence, **search)).encode()
    arguments.path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(arguments.path, [content])
    print(f"Wrote {arguments.path} ({len(content) / 1e3:,.0f} kB). Open it in a browser.")


def render(data: dict[str, Any], plotly: str | None = None) -> str:
    """The page with the data as JSON. `<` is escaped, so that no text can close the script element.

    Args:
        data: what `explore` returns.
        plotly: address of plotly.js; `None` to include its 5 MB in the page.

    Raises:
        ValueError: plotly is not installed.
    """
    with reraise_as_value_error("the page requires plotly: pip install 'random-transformer[explore]'"):
        from plotly.offline import get_plotlyjs  # the drawing of the architecture does not need it
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    library = f'<script src="{plotly}"></script>' if plotly else f"<script>{get_plotlyjs()}</script>"
    page = TEMPLATE.read_text(encoding="utf-8").replace("<!-- plotly.js -->", library)
    page = page.replace("/* search_tree.js */", SEARCH_TREE.read_text(encoding="utf-8"))
    return page.replace("/* data */", text)
