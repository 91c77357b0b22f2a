"""Loading a saved translation model. Errors name the damaged file and, where possible, the field."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, logging

from ..configuration_random_transformer import RandomTransformerConfig
from ..pipeline_random_transformer import Seq2SeqPipeline, tokenizer_languages
from ..quantization_random_transformer import METHOD, DynamicInt8Config
from ..utils.vocabulary import check_tokenizer
from .diagnosis import (
    TOKENIZER,
    Location,
    eliminate_field,
    fails,
    locate_field,
    name_file_in_errors,
    read_object,
    shorten,
)
from .weights import CONFIG, WEIGHT_FILES, check_loaded_weights, check_weight_files

GENERATION, TOKENIZER_CONFIG = "generation_config.json", "tokenizer_config.json"
JSON_FILES = (
    CONFIG,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    SAFE_WEIGHTS_INDEX_NAME,
    "special_tokens_map.json",
    "adapter_config.json",
)


def load_translator(
    folder: Path, dtype: str = "float32", argument: str = "FOLDER"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the sequence-to-sequence model of a folder, on the CPU, and its tokenizer.

    Args:
        folder: a saved model, or an adapter for one, with its tokenizer.
        dtype: dtype of the weights; `"auto"` for the saved one, `"int8"` for `DynamicInt8Config`.
        argument: name of the command-line argument in error messages.

    Raises:
        ValueError: a file is damaged or missing; the message names the file and, if known, the field.
    """
    try:
        return load_model_and_tokenizer(folder, dtype)
    except ValueError as error:
        raise ValueError(
            f"{argument} must contain a model and its tokenizer, got {describe_folder(folder)}: {error}"
        ) from error


def describe_folder(folder: Path) -> str:
    """The folder, and for an adapter also its base model, which may be the cause of the error."""
    try:
        base = json.loads((folder / "adapter_config.json").read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, RecursionError, TypeError, KeyError):
        return str(folder)
    return f"{folder}, an adapter for {base}"


def load_model_and_tokenizer(
    folder: str | PathLike, dtype: str | torch.dtype = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """`load_translator` with errors that do not name an argument. Code in the folder is never executed.

    One word is translated as a check, because some settings are validated only when they are used.

    Args:
        folder: a saved model, or an adapter for one, with its tokenizer.
        dtype: dtype of the weights; `"auto"` for the saved one, `"int8"` for `DynamicInt8Config`.

    Raises:
        ValueError: a file cannot be read, a field is invalid, weights are missing or have another shape, or the
            tokenizer has another vocabulary. The message is one line and names the file.
    """
    path = Path(folder)
    with silence_transformers():
        for name in JSON_FILES:
            if (path / name).exists():
                read_object(path / name)
        if (path / CONFIG).is_file():
            check_config(path)
            check_weight_files(path)
        model = load_model(path, dtype)
        tokenizer = load_tokenizer(path)
        if isinstance(model.config, RandomTransformerConfig):
            check_vocabulary(path, tokenizer, model.config)
        check_generation(path, model, tokenizer)
    return model, tokenizer


def check_config(folder: Path) -> None:
    """Check config.json and generation_config.json."""
    content = read_object(folder / CONFIG)
    model_type = content.get("model_type")
    if not isinstance(model_type, str) or model_type not in CONFIG_MAPPING:
        raise ValueError(f"{CONFIG}: model_type must be an architecture of transformers, got {shorten(model_type)}.")
    if not isinstance(content.get("auto_map", {}), dict):
        raise ValueError(f"{CONFIG}: auto_map must be an object, got {shorten(content['auto_map'])}.")
    with name_file_in_errors(CONFIG, lambda: locate_field(folder, CONFIG, read_config)):
        read_config(folder)
    if (folder / GENERATION).is_file():
        read = GenerationConfig.from_pretrained
        with name_file_in_errors(GENERATION, lambda: locate_field(folder, GENERATION, read)):
            read(folder)


def read_config(folder: Path) -> Any:
    return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def load_model(folder: Path, dtype: str | torch.dtype) -> PreTrainedModel:
    """Load the model, and check that weights and configuration match."""
    options = dtype_options(folder, dtype)
    file = next((name for name in WEIGHT_FILES if (folder / name).is_file()), SAFE_WEIGHTS_NAME)
    fallback = "" if file in WEIGHT_FILES[:2] else f", because {SAFE_WEIGHTS_NAME} is missing"
    with name_file_in_errors(file + fallback, lambda: locate_field(folder, CONFIG, build_without_weights)):
        # Mismatched shapes are collected instead of raised, because transformers' error is a multi-line table.
        model, info = AutoModelForSeq2SeqLM.from_pretrained(
            folder,
            **options,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    check_loaded_weights(folder, file, info, model.config)
    return model


def dtype_options(folder: Path, dtype: str | torch.dtype) -> dict[str, Any]:
    """The arguments of `from_pretrained` for this dtype; none for `"int8"` if the weights are saved in int8."""
    if dtype != "int8":
        return {"dtype": dtype}
    if (folder / "adapter_config.json").is_file():
        raise ValueError("dtype must be of floating point for an adapter that is not merged, got int8.")
    saved = read_object(folder / CONFIG).get("quantization_config")
    is_int8 = isinstance(saved, dict) and saved.get("quant_method") == METHOD
    return {} if is_int8 else {"quantization_config": DynamicInt8Config()}


def build_without_weights(folder: Path) -> None:
    """Build the model on the meta device, to check whether the configuration is usable."""
    with torch.device("meta"):
        AutoModelForSeq2SeqLM.from_config(read_config(folder), trust_remote_code=False)


def load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Load the tokenizer, which must have a padding token."""
    has_backend = (folder / TOKENIZER).is_file()
    if has_backend:
        with name_file_in_errors(TOKENIZER, lambda: locate_field(folder, TOKENIZER, read_backend)):
            read_backend(folder)
    file = TOKENIZER_CONFIG if has_backend else f"{TOKENIZER_CONFIG}, because {TOKENIZER} is missing"
    with name_file_in_errors(file, lambda: locate_field(folder, TOKENIZER_CONFIG, read_tokenizer)):
        tokenizer = read_tokenizer(folder)
    if tokenizer.pad_token_id is None:
        raise ValueError(f"{TOKENIZER_CONFIG}: pad_token must be given.")
    return tokenizer


def read_backend(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / TOKENIZER))


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def check_vocabulary(folder: Path, tokenizer: PreTrainedTokenizerBase, config: RandomTransformerConfig) -> None:
    """Check that the tokenizer has the vocabulary of the model."""

    def check(path: Path) -> None:
        check_tokenizer(read_tokenizer(path), config)

    with name_file_in_errors(
        f"{TOKENIZER} or {TOKENIZER_CONFIG}", lambda: locate_field(folder, TOKENIZER_CONFIG, check)
    ):
        check_tokenizer(tokenizer, config)


def check_generation(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Translate one word, to find settings that are validated only when they are used."""

    def translate(tokenizer: PreTrainedTokenizerBase) -> None:
        with torch.random.fork_rng(devices=[]):
            languages = dict.fromkeys(("src_lang", "tgt_lang"), next(iter(tokenizer_languages(tokenizer)), None))
            Seq2SeqPipeline(model, tokenizer, device=model.device, num_beams=2, max_new_tokens=2, **languages)("a")

    def translate_with(settings: dict[str, Any]) -> None:
        saved, model.generation_config = model.generation_config, GenerationConfig.from_dict(settings)
        try:
            translate(tokenizer)
        finally:
            model.generation_config = saved

    def locate() -> Location | None:
        defaults = GenerationConfig.from_model_config(model.config).to_dict()
        if (folder / GENERATION).is_file() and not fails(translate_with, defaults):
            content = read_object(folder / GENERATION)
            return GENERATION, eliminate_field(content, lambda remaining: not fails(translate_with, remaining))
        for name in (TOKENIZER_CONFIG, TOKENIZER):
            location = locate_field(folder, name, lambda path: translate(read_tokenizer(path)))
            if location:
                return location
        return None

    with name_file_in_errors("the model or its tokenizer", locate):
        translate(tokenizer)


@contextmanager
def silence_transformers() -> Iterator[None]:
    """Hide progress bars and loading reports of transformers. Problems in them are raised as errors."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
