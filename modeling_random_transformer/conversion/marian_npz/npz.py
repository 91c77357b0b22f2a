"""Reads a model file of Marian: a `.npz` with one array for each parameter, and the options in `special:model.yml`."""

import io
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from torch import Tensor

from ...utils.errors import first_line

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
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
            size = sum(member.file_size for member in members)
            if size <= MAX_BYTES:
                return {member.filename.removesuffix(".npy"): parse_array(archive.read(member)) for member in members}
    except Exception as error:  # the exception type depends on where the file is damaged
        raise ValueError(f"{path} must be a complete .npz file, but it cannot be read.") from error
    raise ValueError(f"the arrays of {path} must have at most {MAX_BYTES} bytes, got {size}.")


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


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the options in a YAML file. Errors are those of `parse_yaml`."""
    return parse_yaml(path.read_bytes(), str(path))


def parse_yaml(content: bytes, origin: str) -> dict[str, Any]:
    """Parse options in YAML, without creating any objects except numbers, strings, lists and dictionaries.

    Raises:
        ValueError: this is not YAML, or not a mapping of names to values.
    """
    try:
        options = yaml.safe_load(content.decode("utf-8"))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValueError(f"{origin} must contain options in YAML, got an error: {first_line(error)}.") from error
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ValueError(f"{origin} must contain options by their names, got {type(options).__name__}.")
    return dict(options)
