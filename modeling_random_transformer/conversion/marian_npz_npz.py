"""Reads a model file of Marian: a `.npz` with one array for each parameter, and the options in `special:model.yml`."""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .untrusted import check_expansion, expanded_size, parse_yaml, read_yaml

OPTIONS = "special:model.yml"  # a string in an array of int8, which ends with a zero byte
MAX_BYTES = 2**34  # of all arrays; the largest published models have 2 GiB
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def read_npz(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the weights and the options of a model. No code in the file is executed.

    Options that the file does not contain are read from `<path>.yml`, where Marian writes those of the training.

    Returns:
        The weights by their names in Marian, and the options by their names on Marian's command line.

    Raises:
        ValueError: the file is missing or damaged, or contains no options; or an array is not of floats.
    """
    check_format(path)
    arrays = read_arrays(path)
    training = Path(f"{path}.yml")
    options = read_yaml(training) if training.is_file() else {}
    if OPTIONS in arrays:
        text = arrays.pop(OPTIONS).tobytes().split(b"\0", 1)[0]
        options |= parse_yaml(text, f"{OPTIONS} of {path}")
    elif not options:
        raise ValueError(f"{path} must contain the model's options as {OPTIONS}, or {training.name} must exist.")
    return {name: as_tensor(name, array, path) for name, array in arrays.items()}, options


def check_format(path: Path) -> None:
    """Raise a `ValueError` unless this is an existing file with the suffix of unquantized models."""
    if path.suffix == ".bin":
        raise ValueError(
            f"the model must be a .npz file, got {path.name}: binary models of marian-conv, which are packed or have 8 "
            "or 16 bit integers, are not supported."
        )
    if path.suffix != ".npz":
        raise ValueError(f"the model must be a .npz file of Marian, got {path.name!r}.")
    if not path.is_file():
        raise ValueError(f"the model must be an existing .npz file, got {str(path)!r}.")


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    with errors_of_reading(path):
        size = expanded_size(path)
    check_expansion(path, size)
    if size > MAX_BYTES:
        raise ValueError(f"the arrays of {path} must have at most {MAX_BYTES} bytes, got {size}.")
    with errors_of_reading(path), zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        return {name.removesuffix(".npy"): parse_array(archive.read(name)) for name in names}


@contextmanager
def errors_of_reading(path: Path) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # the exception type depends on where the file is damaged
        raise ValueError(f"{path} must be a complete .npz file, but it cannot be read.") from error


def parse_array(content: bytes) -> np.ndarray:
    """The array of a `.npy` file. Unlike `np.load`, this allocates no memory for data that the file does not have."""
    file = io.BytesIO(content)
    shape, fortran_order, dtype = HEADERS[np.lib.format.read_magic(file)](file)
    # Of a bytearray, as torch warns about arrays that are not writable.
    values = np.frombuffer(bytearray(content), dtype, offset=file.tell())
    return values.reshape(shape, order="F" if fortran_order else "C")


def as_tensor(name: str, array: np.ndarray, path: Path) -> Tensor:
    if array.dtype.kind != "f" or array.dtype.itemsize > 8:
        raise ValueError(
            f"{name} of {path} must be an array of floats, got {array.dtype}: quantized models are not supported."
        )
    return torch.from_numpy(np.ascontiguousarray(array, array.dtype.newbyteorder("=")))
