"""Export a trained model to an inference engine, and compare the translations of both.

    random-transformer export outputs/quickstart --engine ctranslate2 --dtype int8 --output outputs/served
    random-transformer export outputs/quickstart --engine onnx --output outputs/served --check test.en
    random-transformer export outputs/quickstart --engine onnx --web --output outputs/page

With --web, the output folder is a static page that translates in the browser: `python -m http.server -d outputs/page`
serves it. The JavaScript packages that it needs are downloaded with npm.

The output folder also contains the tokenizer. Exit status: 0 on success; 1 if too few translations of the engine are
identical to the model's (99% in float32, otherwise 50%), with the output kept, or if the weights of the model are not
finite; 2 if an argument is invalid. On other failures, no output is written.
"""

import argparse
import logging
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from ..export.compare import SENTENCES, compare, folder_size
from ..export.engines import ENGINES, export_model, load_engine, max_tokens
from ..export.web import export_web_page
from ..inference.loading import load_translator
from ..inputs_random_transformer import LanguageTags, drop_none, source_limit, source_positions
from ..pipeline_random_transformer import Seq2SeqPipeline
from ..utils.text import read_lines
from .command_line import (
    Parser,
    add_language_arguments,
    existing_file,
    print_error,
    require_random_transformer_folder,
    run_command,
)

PROGRAM = "random-transformer export"
MAX_SENTENCES = 200
# The least share of identical translations. Nearly equal scores may differ in float32; other dtypes round the weights.
LEAST_IDENTICAL = {"float32": 0.99, "bfloat16": 0.5, "int8": 0.5}


def main(argv: Sequence[str] | None = None) -> int:
    """Export a model and compare it with the engine. Returns the exit status, see `run_command`."""
    arguments = parse_arguments(argv)
    return run_command(lambda: run(arguments), PROGRAM)


def parse_arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(PROGRAM, __doc__)
    parser.add_argument(
        "model",
        type=require_random_transformer_folder,
        metavar="FOLDER",
        help="a saved model and its tokenizer",
    )
    parser.add_argument("--engine", required=True, choices=tuple(ENGINES))
    parser.add_argument(
        "--dtype",
        choices=("float32", "bfloat16", "int8"),
        help="dtype of the weights (default: float32, with --web int8; bfloat16 for ctranslate2 only)",
    )
    parser.add_argument(
        "--web", action="store_true", help="also write a web page that translates in the browser (engine onnx only)"
    )
    parser.add_argument(
        "--npm_cache",
        type=Path,
        metavar="FOLDER",
        help="JavaScript packages for --web, downloaded if they are missing (default: ~/.cache/random-transformer/npm)",
    )
    add_language_arguments(parser)
    parser.add_argument("--output", required=True, type=Path, metavar="OUT", help="a new or empty folder")
    parser.add_argument(
        "--check",
        type=existing_file,
        metavar="FILE",
        help=f"UTF-8 text, one sentence per line: compare model and engine on the first {MAX_SENTENCES} "
        "(default: a few built-in sentences)",
    )
    arguments = parser.parse_args(argv)
    if arguments.web and arguments.engine != "onnx":
        parser.error(f"--engine must be onnx with --web, got {arguments.engine}.")
    if arguments.npm_cache is not None and not arguments.web:
        parser.error("--npm_cache must be given with --web only.")
    if arguments.dtype is None:
        arguments.dtype = "int8" if arguments.web else "float32"
    return arguments


def run(arguments: argparse.Namespace) -> int:
    """Export the model, then print the folder's size and the comparisons.

    Returns:
        1 if too few translations of the engine are identical to the model's, else 0.

    Raises:
        ValueError: an argument is invalid, or a sentence is too long for the model or the engine.
        FloatingPointError: the model's weights are not finite.
    """
    sentences = SENTENCES if arguments.check is None else read_sentences(arguments.check)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # warns that torchvision, which is not used, is missing
    model, tokenizer = load_translator(arguments.model)
    set_languages(model, tokenizer, arguments.src_lang, arguments.tgt_lang)
    check_lengths(model, tokenizer, sentences, arguments.engine)  # before anything is written
    if arguments.web:
        export_web_page(model, tokenizer, arguments.output, dtype=arguments.dtype, npm_cache=arguments.npm_cache)
    else:
        export_model(model, tokenizer, arguments.output, engine=arguments.engine, dtype=arguments.dtype)
    size, saved = folder_size(arguments.output), folder_size(arguments.model, "*.safetensors")
    print(
        f"{arguments.output}: {arguments.engine}, {arguments.dtype}, {size:.1f} MB; the model's weights {saved:.1f} MB"
    )
    comparisons = compare(model, tokenizer, load_engine(arguments.output, arguments.engine), sentences)
    for comparison in comparisons:
        print(comparison)
    found, least = min(each.identical / each.sentences for each in comparisons), LEAST_IDENTICAL[arguments.dtype]
    if found >= least:
        return 0
    print_error(
        PROGRAM, f"at least {least:.0%} of the translations must be identical in {arguments.dtype}, got {found:.1%}."
    )
    return 1


def set_languages(model: Any, tokenizer: Any, src_lang: str | None, tgt_lang: str | None) -> None:
    """Make these languages the defaults of a model with language tags, so that the engine translates between them."""
    languages = LanguageTags.of(tokenizer, src_lang, tgt_lang)
    for name, code in drop_none(src_lang=src_lang, tgt_lang=tgt_lang).items():
        setattr(tokenizer, name, code)
    if languages.forced is not None:
        model.generation_config.forced_bos_token_id = languages.forced
    Seq2SeqPipeline(model, tokenizer, device=model.device).check_target_language()


def check_lengths(model: Any, tokenizer: Any, sentences: Sequence[str], engine: str) -> None:
    """Raise a `ValueError` for a sentence that is too long for the model or the engine."""
    prefix = getattr(model.config, "prefix", None) or ""
    lengths = [len(ids) for ids in tokenizer([prefix + text for text in sentences], verbose=False)["input_ids"]]
    of_model, _ = source_limit(tokenizer, source_positions(model), None)
    limit, longest = min(of_model, max_tokens(model.config, engine) or of_model), max(lengths)
    if longest > limit:
        raise ValueError(
            f"sentences must have at most {limit} tokens for {engine}, but sentence {lengths.index(longest) + 1} has "
            f"{longest}."
        )


def read_sentences(path: Path) -> list[str]:
    """Read the first sentences of a file, without blank lines.

    Raises:
        ValueError: there are none, or the file is not UTF-8.
    """
    with open(path, "rb") as file:
        sentences = [line for line in islice(read_lines(file, str(path)), MAX_SENTENCES) if line.strip()]
    if not sentences:
        raise ValueError(f"--check must name a file with text in its first {MAX_SENTENCES} lines, got {path}.")
    return sentences
