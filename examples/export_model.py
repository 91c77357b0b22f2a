"""Export a trained model to an engine that serves it, and check that the engine translates as the model does.

    python examples/export_model.py outputs/quickstart --engine ctranslate2 --dtype int8 --output outputs/served
    python examples/export_model.py outputs/quickstart --engine onnx --output outputs/served --check test.en

The output holds all that is needed to translate, the tokenizer too: docs/serving.md tells how. Exits with 2, and leaves
no output, if an argument is not as it should be; with 1 if the model's weights are not finite.
"""

import argparse
import logging
from itertools import islice
from pathlib import Path

from modeling_random_transformer.utils.command_line import (
    Parser,
    check_finite,
    existing_file,
    load_translator,
    print_error,
    require_random_transformer_folder,
    run_script,
)

# torch and transformers are imported when the arguments are known to be good: that takes seconds.

SCRIPT = "export_model.py"
MOST_SENTENCES = 200


def main(argv: list[str] | None = None) -> int:
    """Export as the command line says; returns the exit status."""
    arguments = parse_arguments(argv)
    try:
        run(arguments)
    except KeyboardInterrupt:
        return 130
    except FloatingPointError as error:
        print_error(SCRIPT, str(error))
        return 1
    except (ValueError, OSError) as error:
        print_error(SCRIPT, str(error))
        return 2
    return 0


def parse_arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(SCRIPT, __doc__)
    parser.add_argument(
        "model", type=require_random_transformer_folder, metavar="FOLDER", help="a saved model and its tokenizer"
    )
    parser.add_argument("--engine", required=True, choices=("ctranslate2", "onnx"))
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "int8"),
        default="float32",
        help="of the weights (default: %(default)s; bfloat16 for ctranslate2 only)",
    )
    parser.add_argument("--output", required=True, type=Path, metavar="OUT", help="a new or an empty folder")
    parser.add_argument(
        "--check",
        type=existing_file,
        metavar="FILE",
        help=f"UTF-8, a sentence a line: compare model and engine on the first {MOST_SENTENCES} "
        "(default: on a few that are built in)",
    )
    return parser.parse_args(argv)


def run(arguments: argparse.Namespace) -> None:
    from modeling_random_transformer.export import (
        SENTENCES,
        compare,
        export_model,
        folder_size,
        load_engine,
        longest_text,
    )
    from modeling_random_transformer.translation import Translator

    sentences = sentences_of(arguments.check) or SENTENCES
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it misses torchvision, for operations that we have not
    model, tokenizer = load_translator(arguments.model)
    check_finite(model)
    # What is too long for the model or the engine is refused before there is an output.
    lengths = map(len, Translator(model, tokenizer).tokenize(sentences))
    check_lengths(list(lengths), longest_text(model, arguments.engine), arguments.engine)
    export_model(model, tokenizer, arguments.output, engine=arguments.engine, dtype=arguments.dtype)
    size, saved = folder_size(arguments.output), folder_size(arguments.model, "*.safetensors")
    print(
        f"{arguments.output}: {arguments.engine}, {arguments.dtype}, {size:.1f} MB; the model's weights {saved:.1f} MB"
    )
    engine = load_engine(arguments.output, arguments.engine)
    for comparison in compare(model, tokenizer, engine, sentences):
        print(comparison)


def check_lengths(lengths: list[int], limit: int | None, engine: str) -> None:
    longest = max(lengths)
    if limit is not None and longest > limit:
        raise ValueError(
            f"sentences must have at most {limit} tokens for {engine}, but sentence {lengths.index(longest) + 1} has "
            f"{longest}."
        )


def sentences_of(path: Path | None) -> list[str]:
    """The first sentences of a file, blank lines left out; none without a file."""
    from modeling_random_transformer.translation import read_lines

    if path is None:
        return []
    with open(path, "rb") as file:
        sentences = [line for line in islice(read_lines(file, str(path)), MOST_SENTENCES) if line.strip()]
    if not sentences:
        raise ValueError(f"--check must name a file with a sentence in its first {MOST_SENTENCES} lines, got {path}.")
    return sentences


if __name__ == "__main__":
    run_script(main)
