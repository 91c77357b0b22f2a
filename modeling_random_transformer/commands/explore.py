"""Visualize how a model translates a sentence, as an HTML file that works offline.

    random-transformer explore FOLDER "a sentence"                     # writes outputs/explorer.html
    random-transformer explore FOLDER "a sentence" --output page.html --num_beams 6

The page shows the next-token distribution of each step at any temperature, what each part of the decoder adds to the
logits, the predictions after each sub-layer, all attention maps, the candidates of the beam search, the residual
stream, and the position encodings.

Exit status: 0 on success; 1 if the model's weights are not finite; 2 if an argument is invalid.
"""

from dataclasses import dataclass, field
from pathlib import Path

import transformers

from ..base.streams import check_output
from ..extras.inspection.explorer import explore, render
from ..inference.loading import load_models
from ..tokenization_random_transformer import is_blank
from .command_line import check_new_outputs, model_folder, write_page

DEFAULT_OUTPUT = Path("outputs", "explorer.html")


@dataclass(frozen=True)
class Arguments:
    """Arguments of `explore`.

    Args:
        model: a saved translation model
        sentence: the sentence to translate
        output: file to write
        num_beams: beam size
        max_new_tokens: maximum number of output tokens
        overwrite: replace a file other than outputs/explorer.html

    Raises:
        ValueError: the sentence is blank, or the output cannot be written.
    """

    model: Path = field(metadata={"positional": True, "type": model_folder, "metavar": "FOLDER"})
    sentence: str = field(metadata={"positional": True, "metavar": "sentence"})
    output: Path = DEFAULT_OUTPUT
    num_beams: int = 4
    max_new_tokens: int = 128
    overwrite: bool = False

    def __post_init__(self) -> None:
        if is_blank(self.sentence):
            raise ValueError(f"sentence must be a text that is not blank, got {self.sentence!r}.")
        if self.output.parent.exists():  # otherwise, it is created
            check_output("--output", self.output)
        check_new_outputs(self.overwrite or self.output == DEFAULT_OUTPUT, output=self.output)


def run(arguments: Arguments) -> None:
    """Write the page, and print its size."""
    transformers.logging.set_verbosity_error()  # warns about translations above max_position_embeddings
    model, tokenizer = load_models([arguments.model], "float32", argument="FOLDER")
    data = explore(
        model, tokenizer, arguments.sentence, num_beams=arguments.num_beams, max_new_tokens=arguments.max_new_tokens
    )
    page = render(data)
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    write_page(arguments.output, page)
