"""The mean of the last checkpoints' weights, the model that the paper evaluates (6.1)."""

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
    """The mean of several checkpoints' weights, name by name, summed in float64 and given in their own dtype.

    Args:
        checkpoints: folders with `model.safetensors`, with several such files and their index, or with an adapter's.

    Raises:
        ValueError: there is no checkpoint, or they do not hold the same names and shapes.
    """
    if not checkpoints:
        raise ValueError("checkpoints must name at least one folder, got none.")
    first = _load(Path(checkpoints[0]))
    total = {name: weight.to(torch.float64) for name, weight in first.items()}
    for folder in checkpoints[1:]:
        weights = _load(Path(folder))
        if {name: w.shape for name, w in weights.items()} != {name: w.shape for name, w in total.items()}:
            raise ValueError(f"checkpoints must hold weights of the same names and shapes, {folder} has others.")
        for name, weight in weights.items():
            total[name] += weight
    return {name: (weight / len(checkpoints)).to(first[name].dtype) for name, weight in total.items()}


def load_average(model: PreTrainedModel, checkpoints: Sequence[str | Path]) -> PreTrainedModel:
    """Put the mean of several checkpoints' weights into a model of their configuration; returns the model.

    Checkpoints of an adapter go into the model that has one; what is averaged are its factors.

    Raises:
        ValueError: the checkpoints are another model's or another adapter's, or differ among themselves.
    """
    if checkpoints and (Path(checkpoints[0]) / ADAPTER).exists():
        return _load_adapter(model, average_weights(checkpoints), checkpoints[0])
    missing, unexpected = model.load_state_dict(_shared_out(average_weights(checkpoints), model), strict=False)
    tied = set(model.all_tied_weights_keys)
    if unexpected or set(missing) - tied:
        config = type(AutoConfig.from_pretrained(checkpoints[0])).__name__
        raise ValueError(
            f"checkpoints must fit the model, {type(model).__name__}: {config} in {checkpoints[0]} has "
            f"{sorted(unexpected)} too many and {sorted(set(missing) - tied)} too few."
        )
    model.tie_weights()
    return model


def _load_adapter(model: PreTrainedModel, weights: dict[str, Tensor], folder: str | Path) -> PreTrainedModel:
    from peft import set_peft_model_state_dict  # whoever has an adapter has peft

    loaded: Any = set_peft_model_state_dict(model, weights)
    unexpected = loaded.unexpected_keys
    if unexpected:
        raise ValueError(f"checkpoints must fit the model's adapter: {folder} has {sorted(unexpected)} too many.")
    return model


def _shared_out(weights: dict[str, Tensor], model: PreTrainedModel) -> dict[str, Tensor]:
    """Of each weight that several processes share out, this process's part."""
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
