"""Export a trained model to an inference engine or a class of transformers, and compare the translations of both.

    random-transformer export outputs/quickstart --engine ctranslate2 --dtype int8 --output outputs/served
    random-transformer export outputs/quickstart --engine onnx --output outputs/served --check test.en
    random-transformer export outputs/quickstart --engine onnx --web --output outputs/page
    random-transformer export outputs/quickstart --engine argos --source_lang en --target_lang es --output outputs/argos
    random-transformer export outputs/quickstart --engine transformers --output outputs/native

With --web, the output folder is a static page that translates in the browser: `python -m http.server -d outputs/page`
serves it. The JavaScript packages that it needs are downloaded with npm.

The output folder also contains the tokenizer. Exit status: 0 on success; 1 if too few translations of the engine are
identical to the model's (99% in float32, otherwise 50%; any number with a shortlist), with the output kept, or if the
weights of the model are not finite; 2 if an argument is invalid. On other failures, no output is written.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from ..base.flags import Parser, existing_file, model_folder
from ..base.measures import folder_size
from ..data.readers import read_texts
from ..data.sources import ParallelText, pairs_of
from ..extras.export.compare import SENTENCES, compare
from ..extras.export.engines import WEIGHT_DTYPES, export_model, load_engine
from ..extras.export.search import table_positions, token_names
from ..extras.export.shortlist import lexical_shortlist, vmap
from ..extras.export.web import export_web_page
from ..inference.loading import load_translator
from ..inputs_random_transformer import LanguageTags, drop_none, source_limit, source_positions, tokenizer_languages
from ..tokenization_random_transformer import is_blank
from .command_line import print_error

MAX_SENTENCES = 200
# The least share of identical translations. Nearly equal scores may differ in float32; other dtypes round the weights.
LEAST_IDENTICAL = {"float32": 0.99, "bfloat16": 0.5, "int8": 0.5}


@dataclass(frozen=True)
class Arguments:
    """Arguments of `export`.

    Args:
        model: a saved model and its tokenizer
        engine: the inference engine; transformers for MarianMT, Pegasus or Blenderbot
        output: a new or empty folder
        dtype: dtype of the weights (default: float32, with --web int8; no bfloat16 for onnx, no int8 for transformers)
        web: also write a web page that translates in the browser (engine onnx only)
        npm_cache: JavaScript packages for --web, downloaded if they are missing (default:
            ~/.cache/random-transformer/npm)
        source_lang: source language, for a model of several or for argos
        target_lang: target language, for a model of several or for argos
        shortlist_source: text of the training corpus: the engine chooses among the target tokens that occur in
            translations of the source's tokens (engine ctranslate2 only)
        shortlist_target: its translation, line by line
        check: UTF-8 text, one sentence per line: compare model and engine on the first 200 (default: a few built-in
            sentences)

    Raises:
        ValueError: arguments contradict each other.
    """

    model: Path = field(metadata={"positional": True, "type": model_folder, "metavar": "FOLDER"})
    engine: str = field(metadata={"choices": tuple(WEIGHT_DTYPES)})
    output: Path = field(metadata={"metavar": "OUT"})
    dtype: str | None = field(default=None, metadata={"choices": tuple(LEAST_IDENTICAL)})
    web: bool = False
    npm_cache: Path | None = field(default=None, metadata={"metavar": "FOLDER"})
    source_lang: str | None = None
    target_lang: str | None = None
    shortlist_source: Path | None = field(default=None, metadata={"type": existing_file})
    shortlist_target: Path | None = field(default=None, metadata={"type": existing_file})
    check: Path | None = field(default=None, metadata={"type": existing_file})

    def __post_init__(self) -> None:
        if self.web and self.engine != "onnx":
            raise ValueError(f"--engine must be onnx with --web, got {self.engine}.")
        if self.npm_cache is not None and not self.web:
            raise ValueError(f"--npm_cache must be given with --web only, got {self.npm_cache}.")
        files = (self.shortlist_source, self.shortlist_target)
        if files != (None, None) and (None in files or self.engine != "ctranslate2"):
            names, found = "--shortlist_source and --shortlist_target", f"{files[0]}, {files[1]} and {self.engine}"
            raise ValueError(f"{names} must be given together and with --engine ctranslate2, got {found}.")


def run(program: str, argv: Sequence[str]) -> int:
    """Export the model, then print the folder's size and the comparisons.

    Returns:
        1 if too few translations of the engine are identical to the model's, else 0.

    Raises:
        ValueError: an argument is invalid, or a sentence is too long for the model or the engine.
        FloatingPointError: the model's weights are not finite.
    """
    arguments = Parser(program, __doc__, [Arguments]).parse(argv)
    sentences = SENTENCES if arguments.check is None else read_sentences(arguments.check)
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # warns that torchvision, which is not used, is missing
    output, engine = arguments.output, arguments.engine
    dtype = arguments.dtype or ("int8" if arguments.web else "float32")
    model, tokenizer = load_translator(arguments.model)
    languages = {"source_lang": arguments.source_lang, "target_lang": arguments.target_lang}
    if engine != "argos" or tokenizer_languages(tokenizer):
        set_languages(model, tokenizer, *languages.values())
    check_lengths(model, tokenizer, sentences, engine)  # before anything is written
    if arguments.web:
        card = arguments.model / "README.md"
        export_web_page(model, tokenizer, output, dtype=dtype, npm_cache=arguments.npm_cache, card=card)
    else:
        shortlist = read_shortlist(tokenizer, arguments.shortlist_source, arguments.shortlist_target)
        options = languages if engine == "argos" else {}
        export_model(model, tokenizer, output, engine=engine, dtype=dtype, shortlist=shortlist, **options)
    size, saved = folder_size(output), folder_size(arguments.model, "*.safetensors")
    print(f"{output}: {engine}, {dtype}, {size:.1f} MB; the model's weights {saved:.1f} MB")
    comparisons = compare(model, tokenizer, load_engine(output, engine), sentences)
    print(*comparisons, sep="\n")
    found = min(each.identical / each.sentences for each in comparisons)
    least = 0 if arguments.shortlist_source else LEAST_IDENTICAL[dtype]  # a shortlist changes translations
    if found >= least:
        return 0
    print_error(program, f"at least {least:.0%} of the translations must be identical in {dtype}, got {found:.1%}.")
    return 1


def read_shortlist(tokenizer: Any, source: Path | None, target: Path | None) -> bytes | None:
    """The lexical shortlist of two aligned files; `None` without them."""
    if source is None or target is None:
        return None
    pairs = pairs_of([ParallelText(source, target)])
    return vmap(lexical_shortlist(pairs, tokenizer), *token_names(tokenizer, len(tokenizer)))


def set_languages(model: Any, tokenizer: Any, src_lang: str | None, tgt_lang: str | None) -> None:
    """Make these languages the defaults of a model with language tags, so that the engine translates between them."""
    languages = LanguageTags.of(tokenizer, src_lang, tgt_lang)
    for name, code in drop_none(src_lang=src_lang, tgt_lang=tgt_lang).items():
        setattr(tokenizer, name, code)
    if languages.forced is not None:
        model.generation_config.forced_bos_token_id = languages.forced


def check_lengths(model: Any, tokenizer: Any, sentences: Sequence[str], engine: str) -> None:
    """Raise a `ValueError` for a sentence that is too long for the model or the engine."""
    prefix = getattr(model.config, "prefix", None) or ""
    lengths = [len(ids) for ids in tokenizer([prefix + text for text in sentences], verbose=False)["input_ids"]]
    limit, _ = source_limit(tokenizer, source_positions(model), None)
    if engine != "onnx":  # the others have a table of positions
        limit = min(limit, table_positions(model.config))
    longest = max(lengths)
    if longest > limit:
        found = f"sentence {lengths.index(longest) + 1} has {longest}"
        raise ValueError(f"sentences must have at most {limit} tokens for {engine}, but {found}.")


def read_sentences(path: Path) -> list[str]:
    """Read the first sentences of a file, without blank lines.

    Raises:
        ValueError: there are none, or the file is not UTF-8.
    """
    sentences = [line for line in islice(read_texts(path), MAX_SENTENCES) if not is_blank(line)]
    if not sentences:
        raise ValueError(f"--check must name a file with text in its first {MAX_SENTENCES} lines, got {path}.")
    return sentences
