"""Options of other implementations: the allowed values, and the fields of this model's configuration that follow."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import not_
from types import NoneType
from typing import Any

from torch import Tensor

from ... import configuration_random_transformer as configuration
from ...base.errors import format_value, printable

REQUIRED = object()  # default of an option that must be stored
MAX_LENGTH = 2**20  # of position tables, whose values are computed
MAX_NESTING = 4  # of options
Options = dict[str, Any]  # values by their names, such as `model.encoder.layers`
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


# The rules of this model's configuration.
SIZE = Kind(*configuration.SIZE)
LAYERS = Kind(*configuration.RULES["encoder_layers"])
FLAG = Kind(*configuration.FLAG)
RATE = Kind(*configuration.RATE, float)

ANY = Kind("")
LENGTH = Kind(f"an integer from 1 to {MAX_LENGTH}", lambda value: is_size(value, MAX_LENGTH))
EPSILON = Kind("a number above 0 and below 1", lambda value: configuration.is_number(value) and 0 < value < 1, float)
OFF = Kind("off", not_)
TEXT = Kind("a string", lambda value: isinstance(value, str))
NEGATED = Kind("", convert=not_)
PRE_NORM = Kind("", convert=lambda value: "pre" if value else "post")  # an option that is true for pre-norm


def equal(allowed: Any) -> Kind:
    """One value only."""
    return Kind(repr(allowed), lambda value: value == allowed)


def only(name: str, default: Any) -> Option:
    """An option of which no value but the default is supported."""
    return Option(name, equal(default), default)


def off(names: Iterable[str]) -> list[Option]:
    """Options without a counterpart in this model, which are off by default."""
    return [Option(name, OFF, None) for name in names]


def one_of(names: Iterable[str]) -> Kind:
    """Names; those of a mapping with the values of the config fields."""
    convert = names.get if isinstance(names, Mapping) else str
    return Kind(f"one of {', '.join(names)}", lambda value: isinstance(value, str) and value in names, convert)


def is_size(value: Any, maximum: int) -> bool:
    return configuration.is_int(value) and 1 <= value <= maximum


def read_options(stored: Mapping[Any, Any], table: Iterable[Option], same: Iterable[tuple[str, str]] = ()) -> Options:
    """The stored options, with the converted values of those in a table.

    Args:
        stored: the values by their names.
        table: the options that are checked.
        same: pairs of an option and another one that must have the same value, if both have one.

    Raises:
        ValueError: a value is not allowed, or is a tensor, which has no truth value.
    """
    for name, value in stored.items():
        if isinstance(value, Tensor):
            raise invalid(printable(str(name)), "a plain value", value.shape)
    values = dict(stored)
    options = dict(stored)
    for option in table:
        value = stored.get(option.name)
        if value is None and option.default is not REQUIRED:
            value = option.default
        values[option.name] = options[option.name] = value
        if value is None and option.default is None:
            continue
        if not option.kind.accepts(value):
            raise invalid(option.name, option.kind.allowed, value)
        options[option.name] = option.kind.convert(value)
    for name, other in same:
        value = values.get(name)
        expected = values.get(other)
        if value is None or expected is None:
            continue
        # Only plain values are compared: lists that contain themselves, or others many times, take any time.
        if not (isinstance(value, PLAIN) and value == expected):
            raise invalid(name, f"{other}={show(expected)}", value)
    return options


def flatten(options: Mapping[Any, Any], prefix: str = "") -> Options:
    """Nested options by their paths, such as `model.encoder.layers`, down to five levels."""
    flat: Options = {}
    for name, value in options.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and path.count(".") < MAX_NESTING:
            flat |= flatten(value, f"{path}.")
        else:
            flat[path] = value
    return flat


def invalid(name: str, allowed: str, value: Any) -> ValueError:
    """The error of an option with another value."""
    return ValueError(f"{name} must be {allowed}, got {show(value)}.")


def show(value: Any) -> str:
    """A value, or only the type of a container of containers, whose text may be endless."""
    items = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(item, PLAIN) for item in items):
        return format_value(value)
    return f"a {type(value).__name__}"
