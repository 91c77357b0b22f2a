"""The list of inference engines, and the export of a model to one of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils.atomic_files import new_folder
from ..utils.errors import format_names
from ..utils.vocabulary import check_tokenizer
from .search import Translate


@dataclass(frozen=True)
class Engine:
    """An engine: the dtypes of weights that it supports, and the packages that it requires.

    The module of this package with the engine's name defines `save`, `load` and `max_tokens`.
    """

    dtypes: Sequence[str]
    packages: Sequence[str]


ENGINES = {
    "ctranslate2": Engine(("float32", "bfloat16", "int8"), ("ctranslate2",)),
    # onnxruntime has no matrix multiplication in bfloat16 for CPUs.
    "onnx": Engine(("float32", "int8"), ("onnx", "onnxruntime", "onnxscript")),
}


def export_model(
    model: RandomTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    output: str | PathLike,
    *,
    engine: str = "ctranslate2",
    dtype: str = "float32",
) -> None:
    """Export a model and its tokenizer to a folder that an engine loads.

    The folder is created atomically. The model is not changed.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer.
        output: a new or empty folder.
        engine: `"ctranslate2"` or `"onnx"`.
        dtype: dtype of the weights: `"float32"`, `"int8"` or, for CTranslate2, `"bfloat16"`.

    Raises:
        ValueError: an argument is invalid, the engine is not installed, or it does not support the model.
    """
    check_engine(engine, dtype)
    check_exportable(model, tokenizer)
    with new_folder(output) as folder:
        engine_module(engine).save(model, tokenizer, folder, dtype)


def load_engine(folder: str | PathLike, engine: str = "ctranslate2") -> Translate:
    """Load an exported folder as a function that translates sentences.

    Raises:
        ValueError: the engine is unknown or not installed.
    """
    check_engine(engine)
    return engine_module(engine).load(folder)


def max_tokens(model: RandomTransformerForConditionalGeneration, engine: str = "ctranslate2") -> int | None:
    """The maximum number of tokens of a source or a translation; `None` if there is no limit.

    Raises:
        ValueError: the engine is unknown or not installed.
    """
    check_engine(engine)
    return engine_module(engine).max_tokens(model.config)


def check_engine(engine: str, dtype: str | None = None) -> None:
    """Raise a `ValueError` for an unknown engine, or for a dtype that it does not support."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {format_names(map(repr, ENGINES))}, got {engine!r}.")
    if dtype is not None and dtype not in ENGINES[engine].dtypes:
        dtypes = format_names(map(repr, ENGINES[engine].dtypes))
        raise ValueError(f"dtype must be one of {dtypes} for {engine}, got {dtype!r}.")


def check_exportable(model: Any, tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a `ValueError` for a model of another class, a quantized one, or the tokenizer of another model."""
    if not isinstance(model, RandomTransformerForConditionalGeneration):
        expected = RandomTransformerForConditionalGeneration.__name__
        raise ValueError(f"model must be a {expected}, got a {type(model).__name__}.")
    if getattr(model, "quantization_method", None) is not None:
        method = getattr(model.quantization_method, "value", model.quantization_method)
        raise ValueError(f"model must not be quantized, got a model quantized by {method}: cannot export it.")
    check_tokenizer(tokenizer, model.config)


def engine_module(engine: str) -> Any:
    """Import the module of an engine, which imports the engine.

    Raises:
        ValueError: the engine is not installed.
    """
    missing = [package for package in ENGINES[engine].packages if find_spec(package) is None]
    if missing:
        raise ValueError(
            f"engine {engine!r} must be installed (pip install 'random-transformer[{engine}]'), but "
            f"{format_names(missing)} cannot be found."
        )
    return import_module(f".{engine}", __package__)
