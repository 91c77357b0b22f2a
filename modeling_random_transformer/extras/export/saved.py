"""Exports a saved model, and compares the result with it."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...base.files import StrPath, folder_size
from ...base.saved_files import SAVED_WEIGHTS
from ...data.readers import read_texts
from ...data.sources import ParallelText
from ...data.validation import ValidationReport
from ...inference.loading import force_target_language, load_translator
from ...inputs_random_transformer import (
    check_languages,
    encode_texts,
    max_source_positions,
    source_limit,
    source_text,
    tokenizer_languages,
)
from ...tokenization_random_transformer import is_blank
from ..new_folder import check_free
from .compare import EXAMPLE_SENTENCES, Comparison, compare
from .engines import checked_options, export_model, export_module, load_engine
from .search import table_positions, token_names, without_patience
from .shortlist import lexical_shortlist, vmap
from .web import export_web_page

logger = logging.getLogger(__name__)

MAX_SENTENCES = 200
# Engines whose beam search has no patience.
WITHOUT_PATIENCE = ("argos", "transformers")
# The least share of identical translations. Nearly equal scores may differ in float32; other dtypes round the weights.
LEAST_IDENTICAL = {"float32": 0.99, "bfloat16": 0.5, "int8": 0.5}


@dataclass(frozen=True)
class ExportReport:
    """An exported folder, and how it compares with the model.

    Attributes:
        output: the folder.
        engine: the engine.
        dtype: the dtype of the weights.
        size: the size of the folder, in megabytes (10⁶ bytes).
        model_size: the size of the model's weights.
        comparisons: the translations of both, with one beam and with several.
        least_identical: the share of identical translations that is required.
    """

    output: Path
    engine: str
    dtype: str
    size: float
    model_size: float
    comparisons: list[Comparison]
    least_identical: float

    @property
    def identical(self) -> float:
        """The least share of identical translations."""
        return min(comparison.identical / comparison.sentences for comparison in self.comparisons)

    def __str__(self) -> str:
        sizes = f"{self.size:.1f} MB; the model's weights {self.model_size:.1f} MB"
        lines = [f"{self.output}: {self.engine}, {self.dtype}, {sizes}"]
        lines += map(str, self.comparisons)
        return "\n".join(lines)


def export_saved_model(
    folder: StrPath,
    output: StrPath,
    *,
    engine: str = "ctranslate2",
    dtype: str | None = None,
    web: bool = False,
    npm_cache: StrPath | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    shortlist: tuple[Path, Path] | None = None,
    sentence_splitter: StrPath | None = None,
    overwrite: bool = False,
    check: Path | None = None,
) -> ExportReport:
    """Export the model of a folder to an engine, and compare the translations of both.

    Args:
        folder: a saved model and its tokenizer.
        output: a new or empty folder.
        engine: see `export_model`.
        dtype: dtype of the weights; `None` for float32, with `web` int8.
        web: also write a web page that translates in the browser, with the engine onnx.
        npm_cache: see `export_web_page`.
        source_lang: source language, for a model of several or for argos.
        target_lang: target language, for a model of several or for argos.
        shortlist: parallel texts whose lexical shortlist is exported, for ctranslate2.
        sentence_splitter: see `export_model`.
        overwrite: see `export_model`.
        check: sentences to translate, one per line, of which the first 200 are used; `None` for a few built-in ones.

    Raises:
        ValueError: an argument is invalid, or a sentence is too long for the model or the engine.
        FloatingPointError: the model's weights are not finite.
    """
    if web and engine != "onnx":
        raise ValueError(f"engine must be onnx with web, got {engine}.")
    if npm_cache is not None and not web:
        raise ValueError(f"npm_cache must be given with web only, got {npm_cache}.")
    options = checked_options(engine, shortlist=shortlist, sentence_splitter=sentence_splitter)
    sentences = EXAMPLE_SENTENCES if check is None else read_sentences(check)
    dtype = dtype or ("int8" if web else "float32")
    export_module(engine, dtype)
    check_free(output, overwrite)  # before the model is loaded and a shortlist is computed
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # warns that torchvision, which is not used, is missing
    model, tokenizer = load_for_engine(folder, engine, source_lang, target_lang)
    if engine == "argos":
        options |= {"source_lang": source_lang, "target_lang": target_lang}
    check_sentences(model, tokenizer, sentences, engine)  # checked before anything is written
    if shortlist is not None:
        options["shortlist"] = shortlist_of(ParallelText(*shortlist), tokenizer)
    write: Any = partial(export_model, engine=engine, **options)
    if web:
        write = partial(export_web_page, npm_cache=npm_cache, card=Path(folder) / "README.md")
    write(model, tokenizer, output, dtype=dtype, overwrite=overwrite)
    comparisons = compare(model, tokenizer, load_engine(output, engine), sentences)
    least_identical = LEAST_IDENTICAL[dtype] if shortlist is None else 0  # a shortlist changes translations
    sizes = folder_size(output), folder_size(folder, SAVED_WEIGHTS)
    return ExportReport(Path(output), engine, dtype, *sizes, comparisons, least_identical)


def load_for_engine(
    folder: StrPath, engine: str, source_lang: str | None, target_lang: str | None
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model and the tokenizer of a folder, with the languages and the search of an engine."""
    model, tokenizer = load_translator(folder)
    if engine in WITHOUT_PATIENCE:  # the comparison must not use patience either
        model.generation_config = without_patience(model.generation_config, engine)
    if engine != "argos" or tokenizer_languages(tokenizer):
        set_languages(model, tokenizer, source_lang, target_lang)
    return model, tokenizer


def shortlist_of(text: ParallelText, tokenizer: Any) -> bytes:
    """The lexical shortlist of a parallel text, as a file `vmap.txt`.

    Raises:
        ValueError: no line is valid, or the text is not UTF-8.
    """
    report = ValidationReport(str(text))
    pairs = ((line.source, line.target) for line in report.valid_lines(text.lines()))  # in one pass: it may be a pipe
    try:
        shortlist = lexical_shortlist(pairs, tokenizer)
    finally:
        report.check("skip")  # its error says why there are no pairs
    if report.invalid:
        logger.warning("%s", report)
    return vmap(shortlist, *token_names(tokenizer, len(tokenizer)))


def set_languages(model: Any, tokenizer: Any, src_lang: str | None, tgt_lang: str | None) -> None:
    """Make these languages the defaults of a model with language tags, so that the engine translates between them."""
    check_languages(tokenizer, src_lang, tgt_lang)
    if src_lang is not None:
        tokenizer.src_lang = src_lang
    if tgt_lang is not None:
        tokenizer.tgt_lang = tgt_lang
        force_target_language(model, tokenizer)


def check_sentences(model: Any, tokenizer: Any, sentences: Sequence[str], engine: str) -> None:
    """Raise a `ValueError` for a sentence that is too long for the model or the engine."""
    texts = [source_text(text, tokenizer, model.config) for text in sentences]
    rows = encode_texts(tokenizer, texts, verbose=False)["input_ids"]
    limit, _ = source_limit(tokenizer, max_source_positions(model), None)
    if engine != "onnx":  # the others have a table of positions
        limit = min(limit, table_positions(model.config))
    for number, row in enumerate(rows, start=1):
        if len(row) > limit:
            raise ValueError(
                f"sentences must have at most {limit} tokens for {engine}, but sentence {number} has {len(row)}."
            )


def read_sentences(path: Path) -> list[str]:
    """Read the first sentences of a file, without blank lines.

    Raises:
        ValueError: there are none, or the file is not UTF-8.
    """
    sentences = [line for line in islice(read_texts(path), MAX_SENTENCES) if not is_blank(line)]
    if not sentences:
        raise ValueError(f"check must be a file with text in its first {MAX_SENTENCES} lines, got {path}.")
    return sentences
