"""Digests of files and models."""

import hashlib
import json
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from .vocabulary import vocabulary

# Fields of a configuration that do not affect the model, like private ones.
PROVENANCE = ("architectures", "auto_map", "dtype", "transformers_version")


def file_digest(path: Path) -> str:
    """Size and SHA-256 of a file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return f"{path.stat().st_size} bytes, sha256 {digest.hexdigest()}"


def model_digest(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> str:
    """A digest of weights, configurations, vocabulary and special tokens."""
    ids, empty = vocabulary(tokenizer)
    described: list[Any] = [sorted(ids.items()), empty]
    members = [member.config for member in getattr(model, "members", ())]  # of an ensemble
    for config in (model.config, model.generation_config, *members):
        fields = config.to_dict().items()
        described.append({name: value for name, value in fields if name[0] != "_" and name not in PROVENANCE})
    digest = hashlib.sha256(json.dumps(described, sort_keys=True, default=str).encode())
    for name, tensor in model.state_dict().items():
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.cpu().contiguous().flatten().view(torch.uint8).numpy())
    return digest.hexdigest()
