"""The inference engines, and the export of a model to one of them."""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from transformers import PreTrainedTokenizerBase

from ...base.errors import reraise_as_value_error
from ...base.files import StrPath
from ...inference.loading import check_tokenizer
from ...inference.translation import BatchTranslator, length_penalty_of, search_options, with_prefixes
from ...inputs_random_transformer import check_choice, drop_none
from ...modeling_random_transformer import RandomTransformerForConditionalGeneration
from ...pipeline_random_transformer import Seq2SeqPipeline, current_device
from ..new_folder import new_folder
from .search import min_new_tokens, suppressed_sequences

MAX_BATCH_TOKENS = 4096


class EngineTranslate(Protocol):
    """A function that translates texts."""

    def __call__(self, texts: Sequence[str], num_beams: int, max_new_tokens: int) -> list[str]:
        """Translate texts by greedy search (one beam) or beam search, and return the translations in their order."""


# Engine → dtypes of its weights. The module with the engine's name defines `save` and `load`.
WEIGHT_DTYPES = {
    "ctranslate2": ("float32", "bfloat16", "int8"),
    "argos": ("float32", "bfloat16", "int8"),
    "onnx": ("float32", "int8"),  # onnxruntime has no matrix multiplication in bfloat16 for CPUs
    "transformers": ("float32", "bfloat16"),
}
# The options of `export_model` that only some engines have.
ENGINE_OPTIONS = {"ctranslate2": ("shortlist",), "argos": ("source_lang", "target_lang", "sentence_splitter")}


def export_model(
    model: RandomTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    output: StrPath,
    *,
    engine: str = "ctranslate2",
    dtype: str = "float32",
    shortlist: bytes | None = None,
    source_lang: str | None = None,
    target_lang: str | None = None,
    sentence_splitter: StrPath | None = None,
    overwrite: bool = False,
) -> None:
    """Export a model and its tokenizer to a folder that an engine loads.

    The folder is created atomically. The model is not changed.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer.
        output: a new or empty folder.
        engine: `"ctranslate2"`, `"onnx"`, `"argos"` for a package of Argos Translate and LibreTranslate, or
            `"transformers"` for a class of transformers itself.
        dtype: dtype of the weights: `"float32"`, `"int8"` (not for transformers) or `"bfloat16"` (not for ONNX).
        shortlist: the target tokens of each source token, for CTranslate2; see `shortlist.vmap`.
        source_lang: code of the source language, for Argos Translate; `None` for that of the tokenizer.
        target_lang: code of the target language; the same.
        sentence_splitter: `LANGUAGE.onnx` of MiniSBD, for Argos Translate, which otherwise downloads it.
        overwrite: replace the files that an export wrote to `output`. Other files in it remain.

    Raises:
        ValueError: an argument is invalid or has no effect, or the engine is not installed or does not support the
            model.
    """
    module = export_module(engine, dtype)
    check_exportable(model, tokenizer)
    options = checked_options(
        engine,
        shortlist=shortlist,
        source_lang=source_lang,
        target_lang=target_lang,
        sentence_splitter=sentence_splitter,
    )
    with new_folder(output, overwrite) as folder:
        module.save(model, tokenizer, folder, dtype, **options)


def checked_options(engine: str, **options: Any) -> dict[str, Any]:
    """The options of `export_model` that are not `None`.

    Raises:
        ValueError: the engine does not have one of them.
    """
    used = drop_none(**options)
    for name in used:
        if name not in ENGINE_OPTIONS.get(engine, ()):
            raise ValueError(f"{name} must be None for {engine}, which has no such option.")
    return used


def load_engine(folder: StrPath, engine: str = "ctranslate2") -> EngineTranslate:
    """Load an exported folder as a function that translates sentences.

    Raises:
        ValueError: the engine is unknown or not installed.
    """
    return export_module(engine).load(folder)


def export_module(engine: str, dtype: str | None = None) -> Any:
    """Import the module that exports to an engine, and that imports the engine.

    Raises:
        ValueError: the engine is unknown or not installed, or does not support the dtype.
    """
    check_choice(WEIGHT_DTYPES, engine=engine)
    if dtype is not None:
        check_choice(WEIGHT_DTYPES[engine], dtype=dtype)
    with reraise_as_value_error(f"engine {engine!r} must be installed: pip install 'random-transformer[{engine}]'"):
        return import_module(f".{engine}", __package__)


def check_exportable(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a `ValueError` for a model of another class or with other layers, or the tokenizer of another model."""
    if not isinstance(model, RandomTransformerForConditionalGeneration):
        expected = RandomTransformerForConditionalGeneration.__name__
        raise ValueError(f"model must be a {expected}, got a {type(model).__name__}.")
    if getattr(model, "quantization_method", None) is not None:
        method = getattr(model.quantization_method, "value", model.quantization_method)
        raise ValueError(f"model must not be quantized, got a model quantized by {method}: cannot export it.")
    if hasattr(model, "peft_config"):
        raise ValueError("model must not have an adapter: merge it first (docs/how_to/fine_tune.md).")
    check_tokenizer(tokenizer, model.config)


def translate_fn(model: Any, tokenizer: Any) -> EngineTranslate:
    """Wrap a model's `generate()` as a function that translates texts. The translation of a blank text is `""`."""
    pipe = Seq2SeqPipeline(
        model, tokenizer, device=current_device(model), max_batch_tokens=MAX_BATCH_TOKENS, return_tokens=True
    )

    def run(texts: Sequence[str], num_beams: int, max_new_tokens: int) -> list[str]:
        # Marian sets forced_eos_token_id, which replaces the last token at the length limit.
        penalty = length_penalty_of(model.generation_config)
        search = search_options(num_beams, penalty, forced_eos_token_id=None)
        if num_beams > 1:  # CTranslate2 always stops after the first `num_beams` finished hypotheses
            search["early_stopping"] = True
            options = model.generation_config
            sequences = suppressed_sequences(options, model.config.vocab_size)
            if sequences or min_new_tokens(options) or options.no_repeat_ngram_size:
                search["renormalize_logits"] = True  # CTranslate2 distributes their probability over the others
        translate_rows = BatchTranslator(pipe, pipe.call_options(max_new_tokens=max_new_tokens, **search))
        rows = [*with_prefixes(texts, None)]
        return [best.translation for best, *_ in translate_rows(rows, 0, lambda _: None)]

    return run
