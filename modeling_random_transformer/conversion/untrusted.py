"""Limits for what files from other tools contain: a few bytes can describe values that take any time or memory."""

import io
import pickle
import pickletools
import zipfile
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch
import yaml
from torch import Tensor

from ..utils.errors import first_line, format_value

MAX_DEPTH = 50
MAX_OPTIONS = 100_000  # values in YAML. A value that several places refer to counts at each of them.
MAX_OBJECTS = 1_000_000  # values in a pickle, such as a training state with a vocabulary
MAX_YAML_BYTES = 2**18  # PyYAML parses some 100 kB per second
MAX_DIGITS = 50  # of a number; its value may be 10 to this power
MAX_RATIO, SMALL = 20, 2**24  # of the sizes of a file, expanded and compressed; small files may be compressed further
LEGACY_PICKLES = 5  # before the weights in the format of PyTorch before 1.6
TAG = "tag:yaml.org,2002:"
NUMBERS = (f"{TAG}int", f"{TAG}float")
PLAIN = (str, int, float, bytes, type(None))  # contain no other values


def check_nesting(root: Any, children: Callable[[Any], Collection[Any]], limit: int, origin: str) -> None:
    """Check the depth and the number of the values in `root`; `children` returns those that a value contains.

    Raises:
        ValueError: there are more than `limit` values, or they are nested deeper than `MAX_DEPTH`, perhaps without end.
    """
    pending, count = [(root, 0)], 1
    while pending:
        value, depth = pending.pop()
        found = children(value)
        count += len(found)
        if depth > MAX_DEPTH or count > limit:
            allowed = f"{limit} values, counting repeated ones, in {MAX_DEPTH} levels"
            raise ValueError(f"{origin} must contain at most {allowed}, got more.")
        pending += [(child, depth + 1) for child in found if not isinstance(child, PLAIN)]


def check_expansion(path: Path, size: int) -> None:
    """Raise a `ValueError` if a file is compressed far more than weights can be, to `size` bytes of content."""
    limit = max(SMALL, MAX_RATIO * path.stat().st_size)
    if size > limit:
        raise ValueError(f"{path} must be compressed at most {MAX_RATIO} times, to {limit} bytes, got {size} bytes.")


class OptionsLoader(yaml.SafeLoader):
    """Reads strings, numbers, booleans, lists and mappings. A date is a string."""


OptionsLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != f"{TAG}timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
OptionsLoader.yaml_constructors = {
    tag: function
    for tag, function in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or tag.removeprefix(TAG) in ("str", "int", "float", "bool", "null", "seq", "map")
}


def read_yaml(path: Path) -> dict[str, Any]:
    """Read the options in a YAML file. Errors are those of `parse_yaml`."""
    with path.open("rb") as file:
        return parse_yaml(file.read(MAX_YAML_BYTES + 1), str(path))


def parse_yaml(content: bytes, origin: str) -> dict[str, Any]:
    """Parse options in YAML: names, and strings, numbers, booleans, lists and mappings as values.

    Raises:
        ValueError: this is not YAML, is too large, contains other types, or is not a mapping of names to values.
    """
    if len(content) > MAX_YAML_BYTES:
        raise ValueError(f"{origin} must have at most {MAX_YAML_BYTES} bytes of options, got more.")
    with errors_of_yaml(origin):
        loader = OptionsLoader(content.decode("utf-8"))
        root = loader.get_single_node()
    # Before values are made of the nodes, as the keys of a merged mapping (`<<`) are copied.
    check_nesting(root, nodes_in, MAX_OPTIONS, origin)
    with errors_of_yaml(origin):
        options = None if root is None else loader.construct_document(root)
    if not isinstance(options, Mapping) or not all(isinstance(name, str) for name in options):
        raise ValueError(f"{origin} must contain options by their names, got {type(options).__name__}.")
    return dict(options)


@contextmanager
def errors_of_yaml(origin: str) -> Iterator[None]:
    try:
        yield
    except (yaml.YAMLError, ValueError, IndexError, OverflowError, RecursionError) as error:
        raise ValueError(f"{origin} must contain options in YAML, got an error: {first_line(error)}.") from error


def nodes_in(node: yaml.Node | None) -> Collection[yaml.Node]:
    """The nodes that a node contains.

    Raises:
        ValueError: it is a number of more than `MAX_DIGITS` characters, which may have a value of any size.
    """
    if isinstance(node, yaml.MappingNode):
        return [child for pair in node.value for child in pair]
    if isinstance(node, yaml.SequenceNode):
        return node.value
    if node is not None and node.tag in NUMBERS and len(node.value) > MAX_DIGITS:
        raise ValueError(f"numbers must have at most {MAX_DIGITS} characters, got {format_value(node.value)}.")
    return ()


def check_objects(root: Any, path: Path) -> None:
    """Check what a pickle contains, except for the values of tensors.

    Raises:
        ValueError: see `check_nesting`; or its tensors have more values than the file can contain.
    """
    storages: dict[int, int] = {}

    def children(value: Any) -> Collection[Any]:
        if isinstance(value, Tensor):
            if value.layout == torch.strided and not (value.is_meta or value.is_nested or value.is_quantized):
                storages[value.untyped_storage().data_ptr()] = value.untyped_storage().nbytes()
            return ()
        if isinstance(value, Mapping):
            return [*value.keys(), *value.values()]
        if isinstance(value, list | tuple | set | frozenset):
            return value
        return vars(value).values() if isinstance(value, Namespace) else ()

    check_nesting(root, children, MAX_OBJECTS, str(path))
    check_expansion(path, sum(storages.values()))


def expanded_size(path: Path) -> int:
    """The size in bytes of the files in a zip file, and 0 for other files."""
    if not zipfile.is_zipfile(path):
        return 0
    with zipfile.ZipFile(path) as archive:
        return sum(member.file_size for member in archive.infolist())


def check_calls(path: Path) -> None:
    """Check the calls in the pickles of a file of PyTorch before it is loaded.

    Raises:
        UnpicklingError: there is a call of `bytearray`, which PyTorch allows, with any size.
    """
    for file in pickles_in(path):
        for opcode, argument, _ in pickletools.genops(file):
            if opcode.name == "GLOBAL" and argument in ("builtins bytearray", "__builtin__ bytearray"):
                raise pickle.UnpicklingError("GLOBAL builtins.bytearray was not allowed")


def pickles_in(path: Path) -> Iterator[IO[bytes]]:
    """The pickles of a file. A zip file contains them as files; in the older format, they precede the weights."""
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            yield from (io.BytesIO(archive.read(name)) for name in archive.namelist() if name.endswith(".pkl"))
    else:
        with path.open("rb") as file:
            yield from [file] * LEGACY_PICKLES
