"""Options of other implementations: the allowed values, and the fields of this model's configuration that follow."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import NoneType
from typing import Any

from torch import Tensor

from ...base.errors import format_value, printable
from ...configuration_random_transformer import is_int, is_number

REQUIRED = object()  # default of an option that must be stored
MAX_SIZE, MAX_DEPTH = 2**20, 1000  # of widths, lengths and vocabularies; of stacks
MAX_NESTING = 4  # of options
PLAIN = (str, bytes, int, float, NoneType)  # contain no other values


@dataclass(frozen=True)
class Kind:
    """The values of an option that this model supports.

    Attributes:
        allowed: description of the values, for errors.
        accepts: whether a value is one of them.
        convert: the value of the config fields.
    """

    allowed: str
    accepts: Callable[[Any], bool] = lambda _: True
    convert: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Option:
    """An option of another implementation.

    Attributes:
        name: its name there.
        kind: its allowed values.
        default: its value if it is not stored or is `None`. A default of `None` is always allowed.
        fields: the fields of `RandomTransformerConfig` that have its value.
    """

    name: str
    kind: Kind
    default: Any = REQUIRED
    fields: tuple[str, ...] = ()


OFF = Kind("off", lambda value: not value)
TEXT = Kind("a string", lambda value: isinstance(value, str))
FLAG = Kind("true or false", lambda value: isinstance(value, bool))
NEGATED = Kind("", convert=lambda value: not value)
PRE_NORM = Kind("", convert=lambda value: "pre" if value else "post")  # an option that is true for pre-norm
RATE = Kind("a number from 0 to below 1", lambda value: is_number(value) and 0 <= value < 1, float)
TRAINING = replace(RATE)  # has no effect on outputs
SIZE = Kind(f"an integer from 1 to {MAX_SIZE}", lambda value: is_size(value))
DEPTH = Kind(f"an integer from 1 to {MAX_DEPTH}", lambda value: is_size(value, MAX_DEPTH))


def equal(allowed: Any) -> Kind:
    """One value only."""
    return Kind(repr(allowed), lambda value: value == allowed)


def one_of(names: Mapping[str, Any]) -> Kind:
    """Names, and the values of the config fields."""
    return Kind(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names, names.get)


def is_size(value: Any, maximum: int = MAX_SIZE) -> bool:
    return is_int(value) and 1 <= value <= maximum


def check_plain(options: Mapping[Any, Any]) -> None:
    """Raise a `ValueError` if an option is a tensor, which has no truth value."""
    for name, value in options.items():
        if isinstance(value, Tensor):
            raise invalid(printable(str(name)), "a plain value", value.shape)


def read_options(
    stored: Mapping[str, Any], table: Iterable[Option], same: Iterable[tuple[str, str]] = ()
) -> dict[str, Any]:
    """The stored options, with the converted values of those in a table.

    Args:
        stored: the values by their names.
        table: the options that are checked.
        same: pairs of an option and another one that must have the same value, if both are stored.

    Raises:
        ValueError: a value is not allowed.
    """
    options = dict(stored)
    for option in table:
        value = stored.get(option.name)
        if value is None and option.default is not REQUIRED:
            value = option.default
        if not (value is None and option.default is None):
            if not option.kind.accepts(value):
                raise invalid(option.name, option.kind.allowed, value)
            value = option.kind.convert(value)
        options[option.name] = value
    for name, other in same:
        value, expected = stored.get(name), stored.get(other)
        # Only plain values are compared: lists that contain themselves, or others many times, take any time.
        if None not in (value, expected) and not (isinstance(value, PLAIN) and value == expected):
            raise invalid(name, f"{other}={show(expected)}", value)
    return options


def read_stacks(stored: Mapping[str, Any], table: Iterable[Option], equal_in_stacks: Iterable[str]) -> dict[str, Any]:
    """`read_options` of `model.encoder` and `model.decoder`, which must have equal values of the named ones."""
    options = read_options(stored, table)
    for name in equal_in_stacks:
        source, target = (options[f"model.{stack}.{name}"] for stack in ("encoder", "decoder"))
        if source != target:
            raise invalid(f"model.decoder.{name}", f"that of model.encoder, {source!r}", target)
    return options


def flatten(options: Mapping[Any, Any], prefix: str = "") -> dict[str, Any]:
    """Nested options by their paths, such as `model.encoder.layers`, down to five levels."""
    flat: dict[str, Any] = {}
    for name, value in options.items():
        path = f"{prefix}{name}"
        nested = isinstance(value, Mapping) and path.count(".") < MAX_NESTING
        flat |= flatten(value, f"{path}.") if nested else {path: value}
    return flat


def invalid(name: str, allowed: str, value: Any) -> ValueError:
    """The error of an option with another value."""
    return ValueError(f"{name} must be {allowed}, got {show(value)}.")


def show(value: Any) -> str:
    """A value, or only the type of a container of containers, whose text may be endless."""
    items = value if isinstance(value, list | tuple) else [value]
    return format_value(value) if all(isinstance(item, PLAIN) for item in items) else f"a {type(value).__name__}"
