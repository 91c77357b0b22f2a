"""Attaches an inference engine to a model, with an export that is cached beside its files."""

import copy
import hashlib
import os
from os import PathLike
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils import logging

from .. import modeling_random_transformer, ops_random_transformer
from ..inputs_random_transformer import check_choice, tokenizer_languages
from ..utils.digests import model_digest
from ..utils.errors import reraise_as_value_error
from .engines import engine_module, export_model

logger = logging.get_logger(__name__)

GENERATING = ("ctranslate2",)  # the engines that compute `generate()`
DEFAULT_DTYPE = "int8"  # 1.1 to 3 times as fast as float32 on every CPU that was measured (docs/results/engines.md)


def attach_engine(
    model: Any,
    tokenizer: PreTrainedTokenizerBase,
    folder: str | PathLike,
    engine: str = "ctranslate2",
    dtype: str | None = None,
    shortlist: str | PathLike | None = None,
) -> None:
    """Let an engine compute `model.generate()` where it computes the same; otherwise the reason is logged.

    Args:
        model: the model, on the CPU. If it cannot be exported, it is not changed.
        tokenizer: its tokenizer.
        folder: the folder of exported models; see `cached_export`.
        engine: `"ctranslate2"`.
        dtype: dtype of the engine's weights; `None` for the fastest one.
        shortlist: the file `vmap.txt` of an export with a lexical shortlist.

    Raises:
        ValueError: the engine is unknown or not installed, or does not support the dtype; or the folder cannot be
            written, or the shortlist cannot be read.
    """
    check_choice(GENERATING, engine=engine)
    dtype = dtype or DEFAULT_DTYPE
    engine_module(engine, dtype)
    with reraise_as_value_error(f"engine_shortlist must be a file that can be read, got {str(shortlist)!r}"):
        content = None if shortlist is None else Path(shortlist).read_bytes()
    try:
        exported = cached_export(model, tokenizer, Path(folder), engine=engine, dtype=dtype, shortlist=content)
    except ValueError as error:
        logger.warning_once("generate() runs the model, not %s: %s", engine, error)
        return
    except OSError as error:
        message = "engine_folder must be a folder that can be written"
        raise ValueError(f"{message}, got {str(folder)!r}: {error.strerror}.") from error
    from .ctranslate2_model import CTranslate2Engine  # imports the engine

    model.engine = CTranslate2Engine(exported, model, tokenizer)


def cached_export(
    model: Any, tokenizer: PreTrainedTokenizerBase, folder: Path, *, engine: str, dtype: str, shortlist: bytes | None
) -> Path:
    """The folder of an exported model, which is created unless the same model was exported before.

    Its name contains a digest of weights, configuration, vocabulary, shortlist and the code of the model.

    Raises:
        ValueError: the engine does not support the model.
        OSError: the folder cannot be written.
    """
    digest = hashlib.sha256(model_digest(model, tokenizer).encode())
    digest.update(shortlist or b"")
    for module in (modeling_random_transformer, ops_random_transformer):
        digest.update(Path(str(module.__file__)).read_bytes())
    path = folder / f"{engine}-{dtype}-{digest.hexdigest()[:16]}"
    if path.is_dir():
        return path
    os.makedirs(folder, exist_ok=True)
    exported = copy.deepcopy(tokenizer)
    if (languages := tokenizer_languages(tokenizer)) and tokenizer.tgt_lang is None:
        exported.tgt_lang = languages[0]  # any of them: the target language is given to `generate()`
    try:
        export_model(model, exported, path, engine=engine, dtype=dtype, shortlist=shortlist)
    except (OSError, ValueError):
        if not path.is_dir():  # otherwise another process has exported the same model
            raise
    return path
