"""Reads files of other tools, which may be damaged or malicious: `.pt`, `.safetensors`, `.npz` and YAML.

No code in a file is executed. Sizes are limited, because a few bytes can describe values of any size.
"""

import argparse
import io
import pickle
import pickletools
import re
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
import yaml
from safetensors.torch import load_file
from torch import Tensor

from ...base.errors import format_names, reraise_as_value_error
from ...base.files import StrPath

MAX_YAML_BYTES = 2**18  # PyYAML parses some 100 kB per second
MAX_DIGITS = 50  # digits of a number; its value may be 10 to this power
NUMBER_TAGS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
MAX_EXPANSION, SMALL = 20, 2**24  # limit for expanded size / compressed size; small files may exceed it
LEGACY_PICKLES = 5  # pickles before the weights in files of PyTorch before 1.6

Weights = Mapping[str, Tensor]  # by their names


class PlainObject:
    """Replaces an object of a checkpoint, whose class is not loaded. Its attributes are plain data."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "PlainObject":  # noqa: ARG004  (arguments of the replaced object)
        return super().__new__(cls)

    def __setstate__(self, state: Any) -> None:
        """Keep the attributes. Other states are discarded."""
        if isinstance(state, dict):
            self.__dict__.update(state)


# Old fairseq checkpoints store options in a Namespace, and statistics and numpy scalars next to the weights.
METERS = ("AverageMeter", "TimeMeter", "StopwatchMeter", "MetersDict", "SumMeter")
PLAIN_CLASSES = (
    *(f"fairseq.meters.{meter}" for meter in METERS),
    *(f"fairseq.logging.meters.{meter}" for meter in METERS),
    "numpy.core.multiarray.scalar",
    "numpy.core.multiarray._reconstruct",
    "numpy._core.multiarray.scalar",
    "numpy._core.multiarray._reconstruct",
    "numpy.dtype",
    "numpy.ndarray",
    # OpenNMT-py 2 stores the vocabularies in fields of torchtext.
    "onmt.inputters.inputter.AlignField",
    "onmt.inputters.text_dataset.TextMultiField",
    "onmt.inputters.text_dataset._feature_tokenize",
    "torchtext.data.field.Field",
    "torchtext.data.utils._split_tokenizer",
    "torchtext.vocab.Vocab",
    "functools.partial",
)
ALLOWED = [argparse.Namespace, *((PlainObject, name) for name in PLAIN_CLASSES)]


def state_dict_in(content: Any, origin: StrPath, key: str | None = None) -> Weights:
    """The state dict at a key of a checkpoint, or the checkpoint itself without a key.

    Raises:
        ValueError: the value is not a mapping of names to tensors, or it is empty.
    """
    keys = type(content).__name__
    state_dict: Any = content
    if isinstance(content, Mapping):
        keys = f"the keys {format_names(map(str, content))}"
        state_dict = content if key is None else content.get(key)
    if isinstance(state_dict, Mapping) and state_dict:
        are_weights = all(isinstance(name, str) and isinstance(state_dict[name], Tensor) for name in state_dict)
        if are_weights:
            return state_dict
    raise ValueError(f"{key or 'content'!r} of {origin} must be a state dict of named tensors, got {keys}.")


def read_checkpoint(path: StrPath) -> Any:
    """Read a `.pt` or `.safetensors` file. From a pickle, only tensors, plain containers and options are loaded.

    Raises:
        ValueError: the path is a folder; or the file is damaged, contains other objects, or its tensors have more
            values than it can contain.
        OSError: the file is missing.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"checkpoint must be a file of weights, got the folder {str(path)!r}.")
    with errors_of_reading(f"checkpoint {path}", "file of weights"):
        check_zip(path)
        if path.suffix == ".safetensors":
            return load_file(path)
        for pickled in pickles_in(path):
            check_calls(pickled)
        with torch.serialization.safe_globals(ALLOWED):  # type: ignore[arg-type]  # pairs are allowed
            content = torch.load(path, map_location="cpu", weights_only=True)
        check_expansion(path, bytes_in_memory(content))
    return content


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """Read the arrays of a `.npz` file.

    Raises:
        ValueError: the file is damaged or compressed too far.
    """
    arrays = {}
    with errors_of_reading(path, ".npz file"):
        check_zip(path)
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                # `np.load` returns the bytes of files that are not arrays.
                with archive.open(name) as file:
                    arrays[name.removesuffix(".npy")] = np.lib.format.read_array(file, allow_pickle=False)
    return arrays


class ExpansionError(ValueError):
    """A file describes more values than weights can have."""


@contextmanager
def errors_of_reading(name: StrPath, kind: str) -> Iterator[None]:
    """Convert errors of reading a damaged file. Their types depend on the position of the damage."""
    try:
        yield
    except (ExpansionError, FileNotFoundError):
        raise
    except pickle.UnpicklingError as error:
        raise ValueError(f"{name} was not read: {pickle_error(str(error))}") from error
    except Exception as error:
        raise ValueError(f"{name} must be a complete {kind}, but it cannot be read.") from error


def pickle_error(message: str) -> str:
    """The reason in PyTorch's message, in one sentence."""
    match = re.search(r"GLOBAL (.+?) (?:was not|whose)|(?:class|function|type) `?([\w.]+\.[\w.]+)", message)
    if match is None:
        return "it is damaged, or not a file of weights."
    name = match[1] or match[2]
    if "." not in name:
        name = f"builtins.{name}"  # PyTorch omits the module
    return (
        f"it contains {ascii(name)[1:-1][:100]}, which is not allowed: "
        "only tensors, plain containers and options are loaded, and no code is executed."
    )


def check_expansion(path: Path, size: int) -> None:
    """Raise a `ValueError` if a file with `size` bytes of content is compressed far more than weights can be."""
    limit = max(SMALL, MAX_EXPANSION * path.stat().st_size)
    if size > limit:
        raise ExpansionError(
            f"{path} must be compressed at most {MAX_EXPANSION} times, to {limit} bytes, got {size} bytes."
        )


class OptionsLoader(yaml.SafeLoader):
    """Reads plain values, without references (`*name`) and long numbers, which could describe values of any size."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("references to other values are not supported")
        node = super().compose_node(parent, index)
        if node.tag in NUMBER_TAGS and len(node.value) > MAX_DIGITS:
            raise ValueError(f"numbers must have at most {MAX_DIGITS} characters")
        return node


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the options in a YAML file. Errors are those of `parse_yaml`."""
    with path.open("rb") as file:
        return parse_yaml(file.read(MAX_YAML_BYTES + 1), path)


def parse_yaml(content: bytes, origin: StrPath) -> dict[str, Any]:
    """Parse options in YAML: names and plain values.

    Raises:
        ValueError: the text is not YAML, is too large, or is not a mapping of names to values.
    """
    if len(content) > MAX_YAML_BYTES:
        raise ValueError(f"{origin} must have at most {MAX_YAML_BYTES} bytes of options, got more.")
    with reraise_as_value_error(f"{origin} must contain options in YAML, got an error"):
        options = yaml.load(content.decode("utf-8"), OptionsLoader)
    if not isinstance(options, dict) or not all(isinstance(name, str) for name in options):
        raise ValueError(f"{origin} must contain options by their names, got {type(options).__name__}.")
    return options


def bytes_in_memory(root: Any) -> int:
    """The size of the memory of all tensors in nested containers, which may contain themselves."""
    storages: dict[int, int] = {}  # sizes by address
    seen = set()
    pending = [root]
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            if value.layout == torch.strided and not (value.is_meta or value.is_nested or value.is_quantized):
                storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
        elif isinstance(value, Mapping):
            pending += value.values()
        elif isinstance(value, list | tuple | set | frozenset):
            pending += value
        elif isinstance(value, argparse.Namespace | PlainObject):
            pending.append(vars(value))
    return sum(storages.values())


def check_zip(path: Path) -> None:
    """Raise an error if a zip file is damaged, or is compressed far more than weights can be."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_expansion(path, sum(member.file_size for member in archive.infolist()))


def check_calls(file: IO[bytes]) -> None:
    """Check the calls in a pickle before it is loaded.

    Raises:
        UnpicklingError: the pickle calls `bytearray`, which PyTorch allows with any size.
    """
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name == "GLOBAL" and argument in ("builtins bytearray", "__builtin__ bytearray"):
            raise pickle.UnpicklingError("GLOBAL builtins.bytearray was not allowed")


def pickles_in(path: Path) -> Iterator[IO[bytes]]:
    """The pickles of a file. A zip file contains them as files; in the older format, they precede the weights."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".pkl"):
                    yield io.BytesIO(archive.read(name))
    else:
        with path.open("rb") as file:
            for _ in range(LEGACY_PICKLES):
                yield file
