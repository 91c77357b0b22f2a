"""Reads checkpoints without executing code from them."""

import argparse
import pickle
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from .untrusted import check_calls, check_expansion, check_objects, expanded_size


class IgnoredObject:
    """Placeholder for objects in a checkpoint that are not needed for the conversion."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "IgnoredObject":  # noqa: ARG004  (arguments of the replaced object)
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Discard the state."""


# Old fairseq checkpoints store options in a Namespace, and statistics and numpy scalars next to the weights.
METERS = ("AverageMeter", "TimeMeter", "StopwatchMeter", "MetersDict", "SumMeter")
IGNORED_CLASSES = [
    *(f"{module}.{meter}" for module in ("fairseq.meters", "fairseq.logging.meters") for meter in METERS),
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    "numpy.dtype",
    "numpy.ndarray",
]
ALLOWED = [argparse.Namespace, *((IgnoredObject, name) for name in IGNORED_CLASSES)]


def read_checkpoint(path: str | Path) -> Any:
    """Read a `.pt` or `.safetensors` file. From a pickle, only tensors, plain containers and options are loaded.

    Raises:
        ValueError: the file is missing or damaged, or contains other objects.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"checkpoint must be an existing file, got {str(path)!r}.")
    with errors_of_reading(path):
        size = expanded_size(path)
    check_expansion(path, size)
    with errors_of_reading(path):
        if path.suffix == ".safetensors":
            return load_file(path)
        check_calls(path)
        with torch.serialization.safe_globals(ALLOWED):  # type: ignore[arg-type]  # pairs are allowed
            content = torch.load(path, map_location="cpu", weights_only=True)
    check_objects(content, path)
    return content


@contextmanager
def errors_of_reading(path: Path) -> Iterator[None]:
    try:
        yield
    except pickle.UnpicklingError as error:
        raise ValueError(f"checkpoint {path} was not read: {pickle_error(str(error))}") from error
    except Exception as error:  # the exception type depends on where the file is damaged
        raise ValueError(f"checkpoint {path} must be a complete file of weights, but it cannot be read.") from error


def pickle_error(message: str) -> str:
    """The reason in PyTorch's message, in one sentence."""
    match = re.search(r"GLOBAL (.+?) (?:was not|whose)|(?:class|function|type) `?([\w.]+\.[\w.]+)", message)
    if match is None:
        return "it is damaged, or not a file of weights."
    name = match[1] or match[2]
    name = name if "." in name else f"builtins.{name}"  # PyTorch omits the module
    return (
        f"it contains {ascii(name)[1:-1][:100]}, which is not allowed: only tensors, plain containers and options are "
        "loaded, and no code is executed."
    )


def is_state_dict(value: Any) -> bool:
    """Whether this is a non-empty dictionary of named tensors."""
    return (
        isinstance(value, Mapping)
        and bool(value)
        and all(isinstance(name, str) and isinstance(weight, Tensor) for name, weight in value.items())
    )
