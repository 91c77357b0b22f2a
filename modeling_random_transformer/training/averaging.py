"""Checkpoint averaging (paper 6.1)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from transformers import AutoConfig, PreTrainedModel

WEIGHTS, INDEX, ADAPTER = "model.safetensors", "model.safetensors.index.json", "adapter_model.safetensors"


def average_weights(checkpoints: Sequence[str | Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, computed in float64 and returned in their dtype.

    Args:
        checkpoints: folders with `model.safetensors`, with shards and their index, or with adapter weights.

    Raises:
        ValueError: there is no checkpoint, or names and shapes differ between checkpoints.
    """
    if not checkpoints:
        raise ValueError("checkpoints must name at least one folder, got none.")
    first = _load(Path(checkpoints[0]))
    total = {name: weight.to(torch.float64) for name, weight in first.items()}
    for folder in checkpoints[1:]:
        weights = _load(Path(folder))
        if {name: w.shape for name, w in weights.items()} != {name: w.shape for name, w in total.items()}:
            raise ValueError(f"checkpoints must have the same names and shapes, but those of {folder} differ.")
        for name, weight in weights.items():
            total[name] += weight
    return {name: (weight / len(checkpoints)).to(first[name].dtype) for name, weight in total.items()}


def load_average(model: PreTrainedModel, checkpoints: Sequence[str | Path]) -> PreTrainedModel:
    """Load the mean of the weights of several checkpoints into a model with their configuration, and return it.

    Adapter checkpoints require a model with this adapter. Their LoRA factors are averaged.

    Raises:
        ValueError: the checkpoints do not match the model, its adapter or each other.
    """
    if checkpoints and (Path(checkpoints[0]) / ADAPTER).exists():
        return _load_adapter(model, average_weights(checkpoints), checkpoints[0])
    missing, unexpected = model.load_state_dict(_to_shards(average_weights(checkpoints), model), strict=False)
    tied = set(model.all_tied_weights_keys)
    if unexpected or set(missing) - tied:
        config = type(AutoConfig.from_pretrained(checkpoints[0])).__name__
        raise ValueError(
            f"checkpoints must match the model, {type(model).__name__}: {config} in {checkpoints[0]} has unexpected "
            f"{sorted(unexpected)} and lacks {sorted(set(missing) - tied)}."
        )
    model.tie_weights()
    return model


def _load_adapter(model: PreTrainedModel, weights: dict[str, Tensor], folder: str | Path) -> PreTrainedModel:
    from peft import set_peft_model_state_dict  # installed if the model has an adapter

    loaded: Any = set_peft_model_state_dict(model, weights)
    unexpected = loaded.unexpected_keys
    if unexpected:
        raise ValueError(f"checkpoints must match the model's adapter: {folder} has unexpected {sorted(unexpected)}.")
    return model


def _to_shards(weights: dict[str, Tensor], model: PreTrainedModel) -> dict[str, Tensor]:
    """Replace each weight that the model shards with the shard of this process."""
    parameters = model.state_dict()
    for name, weight in weights.items():
        held = parameters.get(name)
        if isinstance(held, DTensor):
            weights[name] = distribute_tensor(weight.to(held.device), held.device_mesh, held.placements)
    return weights


def _load(folder: Path) -> dict[str, Tensor]:
    if (folder / INDEX).exists():
        return {name: w for path in sorted(folder.glob("model-*.safetensors")) for name, w in load_file(path).items()}
    return load_file(folder / (ADAPTER if (folder / ADAPTER).exists() else WEIGHTS))
