"""Checkpoints read without running what is in them."""

import argparse
import pickle
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


class Inert:
    """In place of objects that training left in a checkpoint and that a conversion does not look at."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "Inert":  # noqa: ARG004  (whatever the object was made from)
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Forget the state too."""


# Old fairseq keeps its options in a Namespace; its statistics and numpy's numbers lie beside the weights.
METERS = ("AverageMeter", "TimeMeter", "StopwatchMeter", "MetersDict", "SumMeter")
STAND_INS = [
    *(f"{module}.{meter}" for module in ("fairseq.meters", "fairseq.logging.meters") for meter in METERS),
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    "numpy.dtype",
    "numpy.ndarray",
]
ALLOWED = [argparse.Namespace, *((Inert, name) for name in STAND_INS)]


def read_checkpoint(path: str | Path) -> Any:
    """What a `.pt` or `.safetensors` file holds. Of a pickle only tensors, plain containers and options are read.

    Raises:
        ValueError: the file is missing, damaged, or asks for anything else to be loaded or called.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"checkpoint must be a file that exists, got {str(path)!r}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals(ALLOWED):  # type: ignore[arg-type]  # pairs are allowed too
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(f"checkpoint {path} was not read: {refusal(str(error))}") from error
    except Exception as error:  # what a damaged file leads to depends on where it is damaged
        raise ValueError(f"checkpoint {path} must be a complete file of weights, but it cannot be read.") from error


def refusal(message: str) -> str:
    """Of PyTorch's long message, what was found."""
    found = re.search(r"GLOBAL (.+?) (?:was not|whose)|(?:class|function|type) `?([\w.]+\.[\w.]+)", message)
    if found is None:
        return "it is damaged, or no file of weights."
    name = found[1] or found[2]
    name = name if "." in name else f"builtins.{name}"  # which PyTorch leaves out
    return (
        f"it asks for {ascii(name)[1:-1][:100]}, which is code that is not allowed: only tensors, plain containers and "
        "options are read, and nothing is run."
    )


def is_state_dict(value: Any) -> bool:
    """Whether this is a dictionary of tensors by their names, and has any."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(name, str) and isinstance(weight, Tensor) for name, weight in value.items())
    )
