"""Checks of the files with the weights of a saved model, and of weights against the configuration."""

import json
import math
import struct
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import PretrainedConfig
from transformers.utils import SAFE_WEIGHTS_INDEX_NAME, SAFE_WEIGHTS_NAME, WEIGHTS_INDEX_NAME, WEIGHTS_NAME

from ..configuration_random_transformer import RandomTransformerConfig
from ..utils.errors import format_names
from .diagnosis import read_object, shorten, summarize

CONFIG = "config.json"
WEIGHT_FILES = (SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME, WEIGHTS_INDEX_NAME)
# Bytes per element of the data types of safetensors.
ITEM_SIZES = {"F64": 8, "I64": 8, "U64": 8, "F32": 4, "I32": 4, "U32": 4, "F16": 2, "BF16": 2, "I16": 2, "U16": 2}
# The configuration field that determines whether parameters with such a name exist.
FIELDS_OF_PARAMETERS = {
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


def check_weight_files(folder: Path) -> None:
    """Check that all files of the weights exist and that their safetensors headers are valid."""
    if (folder / SAFE_WEIGHTS_NAME).is_file():
        names = {SAFE_WEIGHTS_NAME}
    elif (folder / SAFE_WEIGHTS_INDEX_NAME).is_file():
        names = shards_of_index(folder)
    elif any(folder.glob("model-*-of-*.safetensors")):
        raise ValueError(f"{SAFE_WEIGHTS_INDEX_NAME} must be in the folder, because the weights are sharded.")
    else:
        return  # an older format
    for name in sorted(names):
        try:
            with safe_open(folder / name, "pt"):
                pass
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{name}: {invalid_tensor(folder / name) or summarize(error)}") from error


def shards_of_index(folder: Path) -> set[str]:
    """The names of the shards, all of which exist."""
    weight_map = read_object(folder / SAFE_WEIGHTS_INDEX_NAME).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ValueError(f"{SAFE_WEIGHTS_INDEX_NAME}: weight_map must be an object, got {shorten(weight_map)}.")
    present = {file.name for file in folder.iterdir() if file.is_file()}
    for weight, name in weight_map.items():
        if not isinstance(name, str) or name not in present:  # this also excludes paths to other folders
            raise ValueError(
                f"{SAFE_WEIGHTS_INDEX_NAME}: weight_map.{weight} must be the name of a file in the folder, "
                f"got {shorten(name)}."
            )
    return set(weight_map.values())


def invalid_tensor(file: Path) -> str | None:
    """A description of the first invalid tensor in the header of a safetensors file; `None` if all are valid."""
    file_size = file.stat().st_size
    try:
        with open(file, "rb") as content:
            header_size = struct.unpack("<Q", content.read(8))[0]
            header = json.loads(content.read(min(header_size, file_size)))
        tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    except (struct.error, ValueError, RecursionError, AttributeError):
        return None
    for name, entry in tensors.items():
        if key := invalid_key(entry):
            value = entry.get(key) if isinstance(entry, dict) else entry
            return f"{key} of {name} is not valid, got {shorten(value)}."
        begin, end = entry["data_offsets"]
        size = math.prod(entry["shape"]) * ITEM_SIZES.get(entry["dtype"], 1)
        if end - begin != size or end > file_size - 8 - header_size:
            return f"data_offsets of {name} must match its shape, its dtype and the size of the file."
    return None


def invalid_key(entry: Any) -> str | None:
    """The first key of a tensor's entry in the header that is missing or has an invalid value."""
    values: dict[str, Any] = entry if isinstance(entry, dict) else {}
    dtype: Any = values.get("dtype")
    offsets: Any = values.get("data_offsets")
    if not (isinstance(dtype, str) and dtype.startswith(("F", "B", "I", "U", "C"))):
        return "dtype"
    if not are_sizes(values.get("shape")):
        return "shape"
    if not (are_sizes(offsets) and len(offsets) == 2):
        return "data_offsets"
    return None


def are_sizes(value: Any) -> bool:
    return isinstance(value, list) and all(type(size) is int and size >= 0 for size in value)


def check_loaded_weights(folder: Path, file: str, loading_info: dict[str, Any], config: PretrainedConfig) -> None:
    """Check that the weights match the configuration.

    Args:
        folder: the folder of the model.
        file: the name of the file, or of the index of the shards.
        loading_info: the loading info of `from_pretrained`.
        config: the configuration of the loaded model.
    """
    is_random_transformer = isinstance(config, RandomTransformerConfig)
    for name, stored, expected in sorted(loading_info["mismatched_keys"]):
        fields = fields_of_shape(stored, expected, config) if is_random_transformer else []
        raise ValueError(
            f"{file}: {name} must have the shape {list(expected)} of {CONFIG}{in_parentheses(fields)}, "
            f"got {list(stored)}."
        )
    if loading_info["missing_keys"]:
        missing = sorted(loading_info["missing_keys"])
        shards = read_object(folder / file).get("weight_map", {}) if file == SAFE_WEIGHTS_INDEX_NAME else {}
        names = sorted({shards.get(name, file) for name in missing})
        fields = fields_of_parameters(missing) if is_random_transformer else []
        raise ValueError(
            f"{', '.join(names)} must contain all weights of the model in {CONFIG}{in_parentheses(fields)}, "
            f"got none for {format_names(missing)}."
        )
    if is_random_transformer and loading_info["unexpected_keys"]:
        unexpected = sorted(loading_info["unexpected_keys"])
        raise ValueError(
            f"{file} must contain only weights of the model in {CONFIG}"
            f"{in_parentheses(fields_of_parameters(unexpected))}, got {format_names(unexpected)}."
        )


def fields_of_shape(stored: Any, expected: Any, config: RandomTransformerConfig) -> list[str]:
    """The configuration fields that determine the mismatched sizes of a parameter."""
    sizes = [size for found, size in zip(stored, expected, strict=False) if found != size]
    named = [
        name for name in ("vocab_size", "d_model", "d_ff", "max_position_embeddings") if getattr(config, name) in sizes
    ]
    heads = [name for name in ("d_k", "d_v") if config.num_heads * getattr(config, name) in sizes]
    return named + (["num_heads", *heads] if heads else [])


def fields_of_parameters(names: list[str]) -> list[str]:
    """The configuration fields that determine whether the parameters exist."""
    return [field for part, field in FIELDS_OF_PARAMETERS.items() if any(part in name for name in names)]


def in_parentheses(fields: list[str]) -> str:
    return f" ({', '.join(fields)})" if fields else ""


def check_finite(model: nn.Module) -> None:
    """Check that no weight is NaN or infinite, in one pass over the weights.

    Raises:
        FloatingPointError: a weight is not finite. A bias of -inf on a logit is valid: it excludes the token.
    """
    for name, weight in model.state_dict().items():
        if not weight.is_floating_point() or weight.is_meta:
            continue
        allowed = weight.isfinite()
        if name.endswith(("lm_head.bias", "final_logits_bias")):
            allowed |= weight.isneginf()
        if not allowed.all():
            raise FloatingPointError(f"the model's weights must be finite, but {name} contains NaN or infinity.")
