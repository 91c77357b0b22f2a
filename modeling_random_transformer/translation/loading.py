"""Loading a saved translator from a folder that may be damaged: errors name the file and, where possible, the field."""

import json
import math
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
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
from transformers.utils import (
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    WEIGHTS_INDEX_NAME,
    WEIGHTS_NAME,
    logging,
)

from ..configuration_random_transformer import RandomTransformerConfig
from ..utils.checks import check_tokenizer
from . import Translator

CONFIG, GENERATION, TOKENIZER, TOKENIZER_CONFIG = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
)
JSON_FILES = (
    CONFIG,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    SAFE_WEIGHTS_INDEX_NAME,
    "special_tokens_map.json",
    "adapter_config.json",
)
WEIGHT_FILES = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
FIELDS_OF_WEIGHTS = {
    "lm_head.weight": "tie_word_embeddings",
    "lm_head.bias": "lm_head_bias",
    "embed_tokens": "share_embeddings",
    "shared": "share_embeddings",
    "embed_positions": "position_embedding",
    "encoder.layers": "encoder_layers",
    "decoder.layers": "decoder_layers",
    "layer_norm": "final_layer_norm",
    "proj.bias": "attention_bias",
}
# Bytes per element of safetensors' types.
ITEM_SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
# A part of tokenizer.json that cannot be left out.
NO_VOCABULARY = {"type": "BPE", "vocab": {}, "merges": []}


def load_model_and_tokenizer(
    folder: str | PathLike, dtype: str | torch.dtype = "auto"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The sequence-to-sequence model of a folder, on the CPU, and its tokenizer; code of the folder is never run.

    Both are used once, for the translation of one word, so that settings that fail in use are found here.

    Args:
        folder: a saved model, or an adapter for one, with its tokenizer.
        dtype: the dtype of the weights; `"auto"` as saved.

    Raises:
        ValueError: a file cannot be read, a field is not valid, weights are missing or of another shape, or the
            tokenizer is of another vocabulary. The message is one line and names the file.
    """
    path = Path(folder)
    with _silent():
        for name in JSON_FILES:
            if (path / name).exists():
                read_object(path / name)
        if (path / CONFIG).is_file():
            _check_config(path)
            _check_weight_files(path)
        model = _load_model(path, dtype)
        tokenizer = _load_tokenizer(path)
        if isinstance(model.config, RandomTransformerConfig):
            _check_vocabulary(path, tokenizer, model.config)
        _try_out(path, model, tokenizer)
    return model, tokenizer


def read_object(file: Path) -> dict[str, Any]:
    """The JSON object in a file.

    Raises:
        ValueError: the file cannot be read or holds something else; the message names it.
    """
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ValueError(
            f"{file.name} must hold a JSON object, got arrays or objects that are nested too deep."
        ) from error
    except OSError as error:
        raise ValueError(f"{file.name} must be a file that can be read: {error.strerror}.") from error
    except ValueError as error:
        raise ValueError(f"{file.name} must hold a JSON object in UTF-8: {error}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{file.name} must hold a JSON object, got {_short(content)}.")
    return content


def _check_config(folder: Path) -> None:
    content = read_object(folder / CONFIG)
    kind = content.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        raise ValueError(f"{CONFIG}: model_type must be an architecture that transformers knows, got {_short(kind)}.")
    if not isinstance(content.get("auto_map", {}), dict):
        raise ValueError(f"{CONFIG}: auto_map must be an object, got {_short(content['auto_map'])}.")
    with _naming(CONFIG, lambda: _damaged_field(folder, CONFIG, _read_config)):
        _read_config(folder)
    if (folder / GENERATION).is_file():
        with _naming(GENERATION, lambda: _damaged_field(folder, GENERATION, GenerationConfig.from_pretrained)):
            GenerationConfig.from_pretrained(folder)


def _read_config(folder: Path) -> Any:
    return AutoConfig.from_pretrained(folder, trust_remote_code=False)


def _check_weight_files(folder: Path) -> None:
    """Check that the files of the weights are in the folder, and are safetensors files."""
    if (folder / SAFE_WEIGHTS_NAME).is_file():
        names = {SAFE_WEIGHTS_NAME}
    elif (folder / SAFE_WEIGHTS_INDEX_NAME).is_file():
        weight_map = read_object(folder / SAFE_WEIGHTS_INDEX_NAME).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(f"{SAFE_WEIGHTS_INDEX_NAME}: weight_map must be an object, got {_short(weight_map)}.")
        present = {file.name for file in folder.iterdir() if file.is_file()}
        for weight, name in weight_map.items():
            if not isinstance(name, str) or name not in present:  # no path that leads out of the folder either
                raise ValueError(
                    f"{SAFE_WEIGHTS_INDEX_NAME}: weight_map.{weight} must be the name of a file in the folder, "
                    f"got {_short(name)}."
                )
        names = set(weight_map.values())
    elif any(folder.glob("model-*-of-*.safetensors")):
        raise ValueError(f"{SAFE_WEIGHTS_INDEX_NAME} must be in the folder, which has several files of weights.")
    else:
        return  # an older format
    for name in sorted(names):
        try:
            with safe_open(folder / name, "pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{name}: {_damaged_tensor(folder / name) or _one_line(error)}") from error


def _damaged_tensor(file: Path) -> str | None:
    """What is wrong with which tensor in the header of a safetensors file; `None` if it is not one tensor's entry."""
    size_of_file = file.stat().st_size
    try:
        with open(file, "rb") as content:
            length = struct.unpack("<Q", content.read(8))[0]
            header = json.loads(content.read(min(length, size_of_file)))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    except (struct.error, ValueError, RecursionError, AttributeError):
        return None
    for name, entry in tensors.items():
        for key, is_valid in _ENTRY_CHECKS.items():
            if not isinstance(entry, dict) or key not in entry or not is_valid(entry[key]):
                value = entry.get(key) if isinstance(entry, dict) else entry
                return f"{key} of {name} is not valid, got {_short(value)}."
        begin, end = entry["data_offsets"]
        size = math.prod(entry["shape"]) * ITEM_SIZES.get(entry["dtype"], 1)
        if end - begin != size or end > size_of_file - 8 - length:
            return f"data_offsets of {name} do not agree with its shape, its dtype and the file's size."
    return None


def _are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


_ENTRY_CHECKS: dict[str, Callable[[Any], bool]] = {
    "dtype": lambda value: isinstance(value, str) and value.startswith(("F", "B", "I", "U", "C")),
    "shape": _are_sizes,
    "data_offsets": lambda value: _are_sizes(value) and len(value) == 2,
}


def _load_model(folder: Path, dtype: str | torch.dtype) -> PreTrainedModel:
    file = next((name for name in WEIGHT_FILES if (folder / name).is_file()), SAFE_WEIGHTS_NAME)
    with _naming(_described_weights(file), lambda: _damaged_field(folder, CONFIG, _build), CONFIG):
        # Shapes that differ are collected: the library's own error is a table of all of them.
        model, found = AutoModelForSeq2SeqLM.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    own = isinstance(model.config, RandomTransformerConfig)
    for name, stored, expected in sorted(found["mismatched_keys"]):
        fields = _fields_of_shape(stored, expected, model.config) if own else []
        raise ValueError(
            f"{file}: {name} must have the shape {list(expected)}, according to {CONFIG}{_in_brackets(fields)}, "
            f"got {list(stored)}."
        )
    if found["missing_keys"]:
        missing = sorted(found["missing_keys"])
        shards = read_object(folder / file).get("weight_map", {}) if file == SAFE_WEIGHTS_INDEX_NAME else {}
        names = sorted({shards.get(name, file) for name in missing})
        fields = _fields_of_weights(missing) if own else []
        raise ValueError(
            f"{', '.join(names)}: it lacks the weights {_listed(missing)} of the model in {CONFIG}"
            f"{_in_brackets(fields)}."
        )
    if own and found["unexpected_keys"]:
        unexpected = sorted(found["unexpected_keys"])
        raise ValueError(
            f"{file}: it holds the weights {_listed(unexpected)}, which the model in {CONFIG} does not have"
            f"{_in_brackets(_fields_of_weights(unexpected))}."
        )
    return model


def _build(folder: Path) -> None:
    """Make a model without weights, to find out whether the configuration can be used."""
    with torch.device("meta"):
        AutoModelForSeq2SeqLM.from_config(_read_config(folder), trust_remote_code=False)


def _described_weights(file: str) -> str:
    safe = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME)
    return file if file in safe else f"{file}, as there is no {SAFE_WEIGHTS_NAME}"


def _fields_of_shape(stored: Any, expected: Any, config: RandomTransformerConfig) -> list[str]:
    """Which fields of the configuration give the sizes that differ."""
    sizes = [size for found, size in zip(stored, expected, strict=False) if found != size]
    named = [
        name for name in ("vocab_size", "d_model", "d_ff", "max_position_embeddings") if getattr(config, name) in sizes
    ]
    heads = [name for name in ("d_k", "d_v") if config.num_heads * getattr(config, name) in sizes]
    return named + (["num_heads", *heads] if heads else [])


def _fields_of_weights(weights: list[str]) -> list[str]:
    """Which fields of the configuration decide whether there are such weights."""
    return [field for part, field in FIELDS_OF_WEIGHTS.items() if any(part in name for name in weights)]


def _in_brackets(fields: list[str]) -> str:
    return f" ({', '.join(fields)})" if fields else ""


def _listed(names: list[str], most: int = 5) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + rest


def _load_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    file = folder / TOKENIZER
    if file.is_file():
        with _naming(TOKENIZER, lambda: _damaged_field(folder, TOKENIZER, _read_backend)):
            _read_backend(folder)
    name = TOKENIZER_CONFIG if file.is_file() else f"{TOKENIZER_CONFIG}, as there is no {TOKENIZER}"
    with _naming(name, lambda: _damaged_field(folder, TOKENIZER_CONFIG, _read_tokenizer)):
        tokenizer = _read_tokenizer(folder)
    if tokenizer.pad_token_id is None:
        raise ValueError(f"{TOKENIZER_CONFIG}: pad_token must be given.")
    return tokenizer


def _read_backend(folder: Path) -> Tokenizer:
    return Tokenizer.from_file(str(folder / TOKENIZER))


def _read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


def _check_vocabulary(folder: Path, tokenizer: PreTrainedTokenizerBase, config: RandomTransformerConfig) -> None:
    def check(path: Path) -> None:
        check_tokenizer(_read_tokenizer(path), config)

    with _naming(f"{TOKENIZER} or {TOKENIZER_CONFIG}", lambda: _damaged_field(folder, TOKENIZER_CONFIG, check)):
        check_tokenizer(tokenizer, config)


def _try_out(folder: Path, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Translate one word, to find settings that are read only then."""

    def translate(tokenizer: PreTrainedTokenizerBase) -> None:
        with torch.random.fork_rng(devices=[]):
            Translator(model, tokenizer, num_beams=2, max_new_tokens=2)(["a"])

    def damaged_file_and_field() -> str | None:
        settings = model.generation_config
        try:
            model.generation_config = GenerationConfig.from_model_config(model.config)
            if not _fails(translate, tokenizer):
                return f"{GENERATION}: {_damaged_setting(folder, model, lambda: translate(tokenizer))}"
        finally:
            model.generation_config = settings
        for name in (TOKENIZER_CONFIG, TOKENIZER):
            field = _damaged_field(folder, name, lambda path: translate(_read_tokenizer(path)))
            if field:
                return f"{name}: {field}"
        return None

    with _naming("the model or its tokenizer", damaged_file_and_field):
        translate(tokenizer)


def _damaged_setting(folder: Path, model: PreTrainedModel, use: Callable[[], Any]) -> str | None:
    """The field of generation_config.json without which the model can be used."""
    content = read_object(folder / GENERATION)
    for key in content:
        try:
            model.generation_config = GenerationConfig.from_dict({k: v for k, v in content.items() if k != key})
            use()
        except Exception:  # another field is the damaged one
            continue
        return key
    return None


def _damaged_field(folder: Path, name: str, read: Callable[[Path], Any]) -> str | None:
    """The field without which a JSON file of the folder can be read; `None` if there is not one such field."""
    content = read_object(folder / name)
    if not _fails(read, folder):  # the damage is in something else
        return None
    with TemporaryDirectory() as scratch:
        copy = Path(scratch)
        for file in folder.iterdir():
            if file.name != name and file.is_file():
                (copy / file.name).symlink_to(file.resolve())
        for key in content:
            rest = {k: v for k, v in content.items() if k != key}
            if name == TOKENIZER and key == "model":
                rest[key] = NO_VOCABULARY
            (copy / name).write_text(json.dumps(rest), encoding="utf-8")
            if not _fails(read, copy):
                return key
    return None


def _fails(function: Callable[[Any], Any], argument: Any) -> bool:
    try:
        function(argument)
    except BaseException as error:
        if not _is_of_libraries(error):
            raise
        return True
    return False


@contextmanager
def _naming(
    file: str, find_field: Callable[[], str | None] = lambda: None, file_of_field: str | None = None
) -> Iterator[None]:
    """Raise whatever reading a damaged file ends in as a `ValueError` that names the file and the field.

    Libraries have no common class for it: TypeError, KeyError, the plain Exception and the panics of tokenizers.

    Args:
        file: the file that is read.
        find_field: finds the damaged field, called if there is an error; it may also return `"<file>: <field>"`.
        file_of_field: the file that has the field, if it is another one.
    """
    try:
        yield
    except BaseException as error:
        if not _is_of_libraries(error):
            raise
        field, reason = find_field(), _one_line(error)
        if field and ": " in field:
            file, field = field.split(": ", 1)
        elif field and file_of_field:
            file = file_of_field
        known = field is None or field in reason
        raise ValueError(f"{file}: {reason if known else f'{field} is not valid: {reason}'}") from error


def _is_of_libraries(error: BaseException) -> bool:
    """Whether this is an error about what was read, and not the end of the process."""
    return isinstance(error, Exception) or type(error).__name__ == "PanicException"


def _one_line(error: BaseException) -> str:
    """The error's message without the advice that follows in some; with its class if the message alone is unclear."""
    lines = str(error).strip().splitlines() or [""]
    text = f"{lines[0]} {lines[1].strip()}" if lines[0].endswith(":") and len(lines) > 1 else lines[0]
    text = _short(text, 300, str)
    if isinstance(error, ImportError):  # a tokenizer's package, with advice
        return f"{text.partition('. ')[0]}."
    return (
        text if isinstance(error, ValueError | OSError | RuntimeError) and text else f"{type(error).__name__}: {text}"
    )


def _short(value: Any, length: int = 60, written: Callable[[Any], str] = repr) -> str:
    text = written(value)
    return text if len(text) <= length else f"{text[:length]}…"


@contextmanager
def _silent() -> Iterator[None]:
    """Without transformers' progress bars and reports of weights: what they say is raised."""
    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
