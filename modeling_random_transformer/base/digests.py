"""Digests of files and models."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..inputs_random_transformer import encode_texts, tokenizer_languages
from .files import StrPath
from .saved_files import SAVED_WEIGHTS

# Fields of a configuration that do not affect the model. Private fields do not affect it either.
PROVENANCE = ("architectures", "auto_map", "custom_pipelines", "dtype", "transformers_version")
# Options and parts of a tokenizer that determine the ids of a text, apart from its vocabulary.
TEXT_SETTINGS = (
    "keep_line_breaks",
    "keep_without_letters",
    "target_merges",
    "normalizer",
    "pre_tokenizer",
    "model",
)


def file_digest(path: Path) -> str:
    """Size and SHA-256 of a file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return f"{path.stat().st_size} bytes, sha256 {digest.hexdigest()}"


def weight_file_digests(folder: StrPath) -> dict[str, str]:
    """The digest of each file of weights in the folder of a saved model, by its name."""
    return {path.name: file_digest(path) for path in sorted(Path(folder).glob(SAVED_WEIGHTS))}


def bytes_digest(content: bytes) -> str:
    """The SHA-256 of bytes."""
    return hashlib.sha256(content).hexdigest()


def json_digest(value: Any) -> str:
    """A digest of a JSON value."""
    return bytes_digest(json.dumps(value).encode())


def model_digest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of weights, active adapters, configurations, vocabulary and what determines the ids of texts."""
    members = getattr(model, "members", ())  # an ensemble has several models
    configs = [model.config, model.generation_config, *(member.config for member in members)]
    described = [*tokenization(tokenizer), *map(model_settings, configs), *active_adapters(model)]
    header = json.dumps(described, sort_keys=True, default=str)
    return tensors_digest(model.state_dict().items(), header)


def tensors_digest(tensors: Iterable[tuple[Any, Tensor]], header: str = "") -> str:
    """A digest of a text, and of the names, dtypes, shapes and values of tensors."""
    digest = hashlib.sha256(header.encode())
    for name, tensor in tensors:
        shape = list(tensor.shape)
        digest.update(f"{name} {tensor.dtype} {shape}".encode())
        values = tensor.detach().cpu().contiguous().flatten()
        digest.update(values.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def model_settings(config: Any) -> dict[str, Any]:
    """The fields of a configuration that affect the model."""
    settings = config.to_dict().items()
    return {name: value for name, value in settings if name not in PROVENANCE and not name.startswith("_")}


def active_adapters(model: PreTrainedModel) -> list[Any]:
    """The active adapters of each module of peft, whether they are disabled, and their scales."""
    adapters = []
    for name, module in model.named_modules():
        active = getattr(module, "active_adapter", None)
        if isinstance(active, str | list):  # a method in models of transformers
            is_disabled = getattr(module, "disable_adapters", None) is True
            adapters.append([name, active, is_disabled, getattr(module, "scaling", None)])
    return adapters


def tokenizer_definition(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The content of `tokenizer.json`; empty for a tokenizer that is written in Python."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return {} if backend is None else json.loads(backend.to_str())


def tokenization(tokenizer: PreTrainedTokenizerBase) -> list[Any]:
    """What determines the ids of texts: the vocabulary, the ids of an empty text, the settings, SentencePiece models.

    The ids of an empty text are those of the first language if there are several.
    """
    languages = tokenizer_languages(tokenizer)
    encoding = encode_texts(tokenizer, "", src_lang=next(iter(languages), None))
    settings = {**tokenizer.init_kwargs, **tokenizer_definition(tokenizer)}
    models = map(file_digest, map(Path, getattr(tokenizer, "spm_files", ())))  # of a MarianTokenizer
    return [sorted(tokenizer.get_vocab().items()), encoding["input_ids"], *map(settings.get, TEXT_SETTINGS), *models]
