"""Loads a saved translation model, or an ensemble of several. Errors are one line that names the damaged file."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import model_info, try_to_load_from_cache
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import LARGE_INTEGER
from transformers.utils import ADAPTER_CONFIG_NAME, CONFIG_NAME, GENERATION_CONFIG_NAME, logging

from ..base import load_extra
from ..base.digests import tokenization
from ..base.errors import format_names, format_value, reraise_as_value_error
from ..base.files import StrPath, read_json
from ..base.saved_files import (
    LOADED_WEIGHTS,
    RECIPE_RECORD,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    TRAINING_RECORD,
    check_not_exported,
)
from ..configuration_random_transformer import RandomTransformerConfig
from ..inputs_random_transformer import check_positive, drop_none, language_id
from ..quantization_random_transformer import QUANTIZATION_METHOD, DynamicInt8Config
from ..tokenization_random_transformer import is_iterable_of_texts
from .confidence import CALIBRATIONS, Calibrations
from .engine import attach_engine

# Toolkits pad the embedding to a multiple of 8, 64 or 128 rows; a larger difference means another vocabulary.
ROUNDED_TO = 128


def load_models(
    folders: Sequence[StrPath],
    dtype: str = "auto",
    device: str | torch.device = "cpu",
    argument: str = "folders",
    **engine_options: Any,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load a model or an ensemble, and its tokenizer, whose `model_max_length` limits the tokens of a source.

    Args:
        folders: saved models with their tokenizers.
        dtype: see `load_translator`, whose default is float32.
        device: the device.
        argument: name of the argument `folders` in error messages.
        **engine_options: the options of `load_translator` for an engine, with one folder.

    Raises:
        ValueError: the device is not available, a folder cannot be loaded, or the models cannot form an ensemble, or
            have an engine.
        FloatingPointError: a weight is not finite.
    """
    with reraise_as_value_error(f"device must be an available device, got {device}"):
        torch.zeros(1, device=device).item()  # an error on the device meta, which has no values
    if not is_iterable_of_texts(folders) or not folders:
        raise ValueError(f"{argument} must be a list of one or more folders, got {folders!r}.")
    if len(folders) > 1 and engine_options.get("engine") is not None:
        raise ValueError(f"{argument} must be one model with an engine, got {len(folders)}.")
    loaded = [load_translator(folder, dtype, argument, **engine_options) for folder in folders]
    model, tokenizer = loaded[0]
    for folder, (_, other) in zip(folders[1:], loaded[1:], strict=True):
        if tokenization(other) != tokenization(tokenizer):
            raise ValueError(f"{argument} must have the same tokenizer, but {folder} differs from {folders[0]}.")
    if len(loaded) > 1:
        model = load_extra("ensemble").EnsembleForSeq2SeqLM([member for member, _ in loaded])
    set_source_limit(model, tokenizer)
    return model.to(device), tokenizer


def set_source_limit(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Set the limit of a tokenizer that has none to the positions of the model, so that a huge line is an error."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and tokenizer.model_max_length > LARGE_INTEGER:
        tokenizer.model_max_length = positions


def force_target_language(model: Any, tokenizer: Any) -> None:
    """Let a model generate the target language of its tokenizer by default, if it has one."""
    language = getattr(tokenizer, "tgt_lang", None)
    if language is not None:
        model.generation_config.forced_bos_token_id = language_id(tokenizer, language)


def load_translator(
    folder: StrPath,
    dtype: str = "float32",
    argument: str = "folder",
    *,
    engine: str | None = None,
    engine_dtype: str | None = None,
    engine_folder: StrPath | None = None,
    engine_shortlist: StrPath | None = None,
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the sequence-to-sequence model of a folder, on the CPU, and its tokenizer.

    Code in the folder is never executed. Its calibrations become `model.calibrations`.

    Args:
        folder: a saved model, or an adapter for one, with its tokenizer.
        dtype: dtype of the weights; `"auto"` for the saved dtype, `"int8"` for `DynamicInt8Config`.
        argument: name of the argument in error messages.
        engine: `"ctranslate2"` to let CTranslate2 compute `model.generate()` if the result is the same. A warning names
            each reason for which the model computes a call. The model is exported when it is first loaded.
        engine_dtype: dtype of the engine's weights: `"float32"`, `"bfloat16"` or `"int8"`; `None` for the fastest.
        engine_folder: folder of exported models; `None` for the folder `engines` in `folder`.
        engine_shortlist: `vmap.txt` of an export with a shortlist. The engine generates only tokens of the shortlist.

    Raises:
        ValueError: a file is damaged or missing, weights are missing or have another shape, or the tokenizer has
            another vocabulary; the message is one line and names the file. Or the engine is unknown or not installed,
            its folder cannot be written, or its shortlist cannot be read; or it is `None` with one of its options.
        FloatingPointError: a weight is not finite.
    """
    unused = drop_none(engine_dtype=engine_dtype, engine_folder=engine_folder, engine_shortlist=engine_shortlist)
    if engine is None and unused:
        raise ValueError(f"engine must be given with {', '.join(unused)}, got None.")
    path = Path(folder)
    message = f"{argument} must contain a model and its tokenizer, got {folder}"
    with reraise_as_value_error(message), silence_transformers():
        model = read_saved_model(path, dtype)
        tokenizer = read_tokenizer(path, model.config)
    check_finite(model)
    if any(path.glob(CALIBRATIONS)):
        model.calibrations = Calibrations(path)
    if (path / ADAPTER_CONFIG_NAME).is_file():
        if engine is not None:
            raise ValueError(f"engine must be None for an adapter that is not merged, got {engine!r} for {folder}.")
        force_target_language(model, tokenizer)  # the generation config is that of the base model
    if engine is not None:
        attach_engine(model, tokenizer, engine_folder or path / "engines", engine, engine_dtype, engine_shortlist)
    return model, tokenizer


def read_saved_model(folder: Path, dtype: str) -> PreTrainedModel:
    """Load the model of a folder, and check that its weights are complete.

    Raises:
        ValueError: a file is damaged or missing, or weights are missing, not known, or of another shape.
    """
    config = read_model_config(folder)
    if (folder / GENERATION_CONFIG_NAME).is_file():
        check_generation_config(folder)
    files = [name for name in (ADAPTER_CONFIG_NAME, *LOADED_WEIGHTS) if (folder / name).is_file()]
    file = files[0] if files else LOADED_WEIGHTS[0]
    with reraise_as_value_error(file):
        if files:
            (folder / file).open("rb").close()  # safetensors would report a file that cannot be read as missing
        options = int8_options(config) if dtype == "int8" else {"dtype": dtype}
        # Mismatched shapes are collected instead of raised, because transformers' error is a multi-line table.
        options |= {"ignore_mismatched_sizes": True, "output_loading_info": True}
        # The attention implementation in the file may be the name of remote code.
        if file == ADAPTER_CONFIG_NAME:
            check_path("base_model_name_or_path", read_json(folder / file).get("base_model_name_or_path"))
        else:
            options |= {"config": config, "attn_implementation": None}
        model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=False, **options)
    if not isinstance(model.config, RandomTransformerConfig):
        report["unexpected_keys"] = ()  # allowed, as by transformers
    check_report(file, report)
    return model


def check_report(file: StrPath, report: dict[str, Any]) -> None:
    """Raise a `ValueError` unless a file has exactly the weights of a model.

    Args:
        file: the file.
        report: the `output_loading_info` of `from_pretrained` with `ignore_mismatched_sizes`.
    """
    if report["mismatched_keys"]:
        name, stored, expected = min(report["mismatched_keys"])
        raise ValueError(f"{file}: {name} must have the shape {list(expected)} of {CONFIG_NAME}, got {list(stored)}.")
    if report["missing_keys"]:
        names = format_names(sorted(report["missing_keys"]))
        raise ValueError(f"{file} must contain all weights of the model in {CONFIG_NAME}, got none for {names}.")
    if report["unexpected_keys"]:
        names = format_names(sorted(report["unexpected_keys"]))
        raise ValueError(f"{file} must contain only weights of the model in {CONFIG_NAME}, got {names}.")


def check_path(name: str, path: str | None) -> None:
    """Check that a path or a name on the Hub exists. Without a network, transformers would search it for a minute.

    Raises:
        ValueError: there is no such path, and no such name in the cache or on the Hub; the message has the `name`.
    """
    if path is None or Path(path).exists():
        return
    with reraise_as_value_error(f"{name} must be a path that exists, or a name on the Hub, got {path!r}"):
        try_to_load_from_cache(path, CONFIG_NAME) or model_info(path, timeout=10)


def check_generation_config(folder: Path) -> None:
    """Check the token ids of a folder's generation config; `generate()` validates its other options.

    Raises:
        ValueError: the file is damaged.
    """
    with reraise_as_value_error(GENERATION_CONFIG_NAME):
        for name, value in transformers.GenerationConfig.from_pretrained(folder).to_dict().items():
            if not name.endswith("token_id") or value is None:
                continue
            ids = value if isinstance(value, list) else [value]
            if set(map(type, ids)) != {int}:
                raise ValueError(f"{name} must be a token id or several, got {format_value(value)}.")


def read_model_config(folder: Path) -> Any:
    """Read the configuration of a folder; `None` for an adapter without one.

    Raises:
        ValueError: the file is missing or damaged, or the folder is that of a training that is not complete, or of an
            export.
    """
    check_not_exported(folder)
    if not (folder / CONFIG_NAME).is_file():
        if (folder / ADAPTER_CONFIG_NAME).is_file():
            return None
        if any((folder / name).is_file() for name in (TRAINING_RECORD, RECIPE_RECORD)):
            raise ValueError("the training in this folder must be complete: repeat its command.")
    model_type = read_json(folder / CONFIG_NAME).get("model_type")
    with reraise_as_value_error(CONFIG_NAME):
        if model_type not in transformers.CONFIG_MAPPING:
            raise ValueError(f"model_type must be an architecture of transformers, got {format_value(model_type)}.")
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False)


def int8_options(config: Any) -> dict[str, Any]:
    """The arguments of `from_pretrained` for int8. Weights that are saved in int8 need none.

    Raises:
        ValueError: the model is an adapter that is not merged.
    """
    if config is None:
        raise ValueError("dtype must be of floating point for an adapter that is not merged, got int8.")
    saved = getattr(config, "quantization_config", None)
    is_int8 = isinstance(saved, dict) and saved.get("quant_method") == QUANTIZATION_METHOD
    return {} if is_int8 else {"quantization_config": DynamicInt8Config()}


def read_tokenizer(folder: Path, config: Any) -> PreTrainedTokenizerBase:
    """Load the tokenizer, which must have a padding token and the vocabulary of the model.

    Raises:
        ValueError: a file is missing or damaged, or the tokenizer does not belong to the model.
    """
    is_random_transformer = isinstance(config, RandomTransformerConfig)
    if is_random_transformer and not any((folder / name).is_file() for name in (TOKENIZER_FILE, TOKENIZER_CONFIG_FILE)):
        raise ValueError(f"{TOKENIZER_FILE} must be a file of the folder, but it is missing.")
    with reraise_as_value_error(f"{TOKENIZER_FILE} or {TOKENIZER_CONFIG_FILE}"):
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, config=config, trust_remote_code=False)
        if tokenizer.pad_token_id is None:
            raise ValueError("pad_token must be set, got None.")
        check_positive(model_max_length=tokenizer.model_max_length)
        if is_random_transformer:
            check_tokenizer(tokenizer, config)
    return tokenizer


def fits_embedding(tokens: int, rows: int) -> bool:
    """Whether an embedding with this number of rows can belong to a vocabulary with this number of tokens."""
    return tokens <= rows <= math.ceil(tokens / ROUNDED_TO) * ROUNDED_TO


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, config: RandomTransformerConfig) -> None:
    """Check that the tokenizer has the vocabulary of the model.

    Raises:
        ValueError: the tokenizer has more tokens than the model, or far fewer. With separate embeddings for source and
            target (`share_embeddings=False`), any smaller number is allowed.
    """
    tokens = len(tokenizer)
    rows = config.vocab_size
    if tokens > rows or (config.share_embeddings and not fits_embedding(tokens, rows)):
        raise ValueError(f"tokenizer must match the model's vocab_size={rows}, got {tokens} tokens.")


def check_finite(model: nn.Module) -> None:
    """Check that no weight is NaN or infinite, in one pass over the weights.

    Raises:
        FloatingPointError: a weight is not finite. A bias of -inf on a logit is valid: it excludes the token.
    """
    for name, weight in model.state_dict().items():
        if not weight.is_floating_point() or weight.is_meta:
            continue
        is_valid = weight.isfinite()
        if name.endswith(("lm_head.bias", "final_logits_bias")):
            is_valid |= weight.isneginf()
        if not is_valid.all():
            raise FloatingPointError(f"the model's weights must be finite, but {name} contains NaN or infinity.")


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Hide progress bars and loading reports of transformers. `read_saved_model` raises reported problems as errors."""
    verbosity = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
