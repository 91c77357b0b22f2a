"""Export a trained model to an inference engine or a class of transformers, and compare the translations of both.

    random-transformer export outputs/quickstart --engine ctranslate2 --dtype int8 --output outputs/served
    random-transformer export outputs/quickstart --engine onnx --output outputs/served --check test.en
    random-transformer export outputs/quickstart --engine onnx --web --output outputs/page
    random-transformer export outputs/quickstart --engine argos --source_lang en --target_lang es --output outputs/argos
    random-transformer export outputs/quickstart --engine transformers --output outputs/native

With --web, the output folder is a static page that translates in the browser: `python -m http.server -d outputs/page`
serves it. The JavaScript packages that it needs are downloaded with npm.

The output folder also contains the tokenizer. Exit status: 0 on success; 1 if too few translations of the engine are
identical to the model's, or if the weights of the model are not finite; 2 if an argument is invalid. At least 99% of
the translations must be identical in float32, otherwise 50%, and any number with a shortlist. If there are fewer, the
output is kept. After other errors, no output is written.
"""

from dataclasses import dataclass, field
from pathlib import Path

from ..base import DTYPES
from ..extras.export import WEIGHT_DTYPES
from ..extras.export.saved import export_saved_model
from ..extras.parser import InputFile
from .command_line import PROGRAM, model_folder, print_error


@dataclass(frozen=True)
class Arguments:
    """Arguments of `export`.

    Args:
        model: a saved model and its tokenizer
        engine: the inference engine; transformers: MarianMT, Pegasus or Blenderbot
        output: a new or empty folder
        dtype: dtype of the weights (default: float32, with --web int8; no bfloat16 for onnx, no int8 for transformers)
        web: also write a web page that translates in the browser (engine onnx only)
        npm_cache: folder of the JavaScript packages for --web, which are downloaded if they are missing (default:
            ~/.cache/random-transformer/npm)
        source_lang: source language, for a model of several languages or for argos
        target_lang: target language, for a model of several languages or for argos
        shortlist_source: sources of the training corpus; restricts the target tokens to those that occur in
            translations of the source tokens (engine ctranslate2 only)
        shortlist_target: targets of the training corpus, line by line
        sentence_splitter: LANGUAGE.onnx of MiniSBD, with which Argos Translate splits texts offline (engine argos only)
        overwrite: replace the files that an export wrote to the folder; other files in it remain
        check: UTF-8 text file, one sentence per line; compare model and engine on the first 200 (default: a few
            built-in sentences)

    Raises:
        ValueError: arguments contradict each other.
    """

    model: Path = field(metadata={"positional": True, "type": model_folder, "metavar": "FOLDER"})
    engine: str = field(metadata={"choices": tuple(WEIGHT_DTYPES)})
    output: Path = field(metadata={"metavar": "OUT"})
    dtype: str | None = field(default=None, metadata={"choices": DTYPES})
    overwrite: bool = False
    web: bool = False
    npm_cache: Path | None = field(default=None, metadata={"metavar": "FOLDER"})
    source_lang: str | None = None
    target_lang: str | None = None
    shortlist_source: InputFile | None = None
    shortlist_target: InputFile | None = None
    sentence_splitter: InputFile | None = None
    check: InputFile | None = None

    def __post_init__(self) -> None:
        if (self.shortlist_source is None) != (self.shortlist_target is None):
            raise ValueError(
                f"--shortlist_source and --shortlist_target must be given together, got {self.shortlist_source} "
                f"and {self.shortlist_target}."
            )


def run(arguments: Arguments) -> int:
    """Export the model, then print the folder's size and the comparisons.

    Returns:
        1 if too few translations of the engine are identical to the model's, else 0.

    Raises:
        ValueError: an argument is invalid, or a sentence is too long for the model or the engine.
        FloatingPointError: the model's weights are not finite.
    """
    options = dict(vars(arguments))
    folder = options.pop("model")
    shortlist_files = options.pop("shortlist_source"), options.pop("shortlist_target")
    if None not in shortlist_files:
        options["shortlist"] = shortlist_files
    report = export_saved_model(folder, **options)
    print(report)
    if report.identical >= report.least_identical:
        return 0
    print_error(
        f"{PROGRAM} export",
        f"at least {report.least_identical:.0%} of the translations must be identical in {report.dtype}, "
        f"got {report.identical:.1%}.",
    )
    return 1
