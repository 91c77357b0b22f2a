"""The engines that there are, and the way a model takes to each."""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from os import PathLike
from typing import Any

from transformers import PreTrainedTokenizerBase

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..utils.checks import check_tokenizer
from ..utils.files import new_folder
from .search import Translate


@dataclass(frozen=True)
class Engine:
    """One engine: its modules here, with `write` and `load`, and what it needs."""

    module: str
    dtypes: Sequence[str]
    packages: Sequence[str]


ENGINES = {
    "ctranslate2": Engine("to_ctranslate2", ("float32", "bfloat16", "int8"), ("ctranslate2",)),
    # onnxruntime multiplies in bfloat16 on no CPU.
    "onnx": Engine("to_onnx", ("float32", "int8"), ("onnx", "onnxruntime", "onnxscript")),
}


def export_model(
    model: RandomTransformerForConditionalGeneration,
    tokenizer: PreTrainedTokenizerBase,
    output: str | PathLike,
    *,
    engine: str = "ctranslate2",
    dtype: str = "float32",
) -> None:
    """Write a folder from which an engine translates; the tokenizer lies in it too.

    The folder appears when it is complete. The model stays as it is.

    Args:
        model: on any device, in any dtype.
        tokenizer: its tokenizer.
        output: a new or an empty folder.
        engine: `"ctranslate2"` or `"onnx"`.
        dtype: of the weights: `"float32"`, `"int8"` or, for CTranslate2, `"bfloat16"`.

    Raises:
        ValueError: an argument is not allowed, the engine is not installed, or it cannot represent the model.
    """
    check_engine(engine, dtype)
    if not isinstance(model, RandomTransformerForConditionalGeneration):
        wanted = RandomTransformerForConditionalGeneration.__name__
        raise ValueError(f"model must be a {wanted}, got a {type(model).__name__}.")
    if getattr(model, "quantization_method", None) is not None:
        raise ValueError(f"model must have plain weights, got some quantised by {model.quantization_method.value}.")
    check_tokenizer(tokenizer, model.config)
    with new_folder(output) as folder:
        module_of(engine).write(model, tokenizer, folder, dtype)


def load_engine(folder: str | PathLike, engine: str = "ctranslate2") -> Translate:
    """What `export_model` wrote, as a function of sentences.

    Raises:
        ValueError: there is no such engine, or it is not installed.
    """
    check_engine(engine)
    return module_of(engine).load(folder)


def longest_text(model: RandomTransformerForConditionalGeneration, engine: str = "ctranslate2") -> int | None:
    """How many tokens the engine will read or write at most; `None` for any number.

    Raises:
        ValueError: as of `load_engine`.
    """
    check_engine(engine)
    return module_of(engine).longest_text(model.config)


def check_engine(engine: str, dtype: str | None = None) -> None:
    """Refuse an unknown engine, or a dtype that it has not."""
    if engine not in ENGINES:
        raise ValueError(f"engine must be one of {listed(ENGINES)}, got {engine!r}.")
    if dtype is not None and dtype not in ENGINES[engine].dtypes:
        raise ValueError(f"dtype must be one of {listed(ENGINES[engine].dtypes)} for {engine}, got {dtype!r}.")


def module_of(engine: str) -> Any:
    """The engine's module. The engines themselves are imported by it, and only when they are asked for."""
    missing = [package for package in ENGINES[engine].packages if find_spec(package) is None]
    if missing:
        raise ValueError(
            f"engine {engine!r} must be installed (pip install 'random-transformer[{engine}]'), but there is no "
            f"{' and no '.join(missing)}."
        )
    return import_module(f".{ENGINES[engine].module}", __package__)


def listed(names: Any) -> str:
    return ", ".join(map(repr, names))
