"""Options of other implementations, their allowed values, and the fields of this model's configuration."""

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import not_
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple

from torch import Tensor

from ... import configuration_random_transformer as configuration
from ...base.errors import format_value, printable

NO_DEFAULT = object()  # default of an option that must be stored
MAX_LENGTH = 2**20  # limit for position tables, whose values are computed
MAX_NESTING = 4  # limit for the nesting of options
Options = dict[str, Any]  # values by their names, such as `model.encoder.layers`
PLAIN = (str, bytes, int, float, NoneType)  # contain no other values


@dataclass(frozen=True)
class Kind:
    """The values of an option that this model supports.

    Attributes:
        description: description of the values, for errors.
        accepts: whether a value is supported.
        convert: converts a value to the value of the config fields.
    """

    description: str
    accepts: Callable[[Any], bool] = lambda _: True
    convert: Callable[[Any], Any] = lambda value: value


@dataclass(frozen=True)
class Option:
    """An option of another implementation.

    Attributes:
        name: its name in the other implementation.
        kind: its allowed values.
        default: its value if it is not stored or is `None`. A default of `None` is always allowed.
        fields: the fields of `RandomTransformerConfig` that have its value.
    """

    name: str
    kind: Kind
    default: Any = NO_DEFAULT
    fields: Sequence[str] = ()


# Name in the tables of formats → kind of value. Most kinds are the rules of this model's configuration.
OPTION_KINDS = {
    "any": Kind(""),
    "size": Kind(*configuration.SIZE),
    "layers": Kind(*configuration.RULES["encoder_layers"]),
    "flag": Kind(*configuration.FLAG),
    "rate": Kind(*configuration.RATE, float),
    "length": Kind(f"an integer from 1 to {MAX_LENGTH}", lambda value: is_size(value, MAX_LENGTH)),
    "epsilon": Kind(
        "a number above 0 and below 1", lambda value: configuration.is_number(value) and 0 < value < 1, float
    ),
    "on": Kind("on", bool),
    "off": Kind("off", not_),
    "text": Kind("a string", lambda value: isinstance(value, str)),
    "negated": Kind("", convert=not_),
    "pre_norm": Kind("", convert=lambda value: "pre" if value else "post"),  # an option that is true for pre-norm
}


class Format(NamedTuple):
    """The table of a format.

    Attributes:
        names: patterns of the names of weights, and of the parameters that they map to; see `StateDictMapper`.
        options: the options that are checked.
        same: pairs of options that must have the same value, if both have one.
    """

    names: dict[str, str]
    options: list[Option]
    same: dict[str, str]


def read_format(module: str, **kinds: Kind) -> Format:
    """The table of a format in the `.toml` file beside its module.

    Besides `names` and `same`, the table has these parts:

    - `unsupported`: options without a counterpart in this model, which are off by default;
    - `only`: options of which no value but the default is supported;
    - `options`: the arguments of `read_option` for all others.

    Args:
        module: the file of the module.
        **kinds: kinds of options that only this format has.
    """
    table = tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))
    options = [Option(name, OPTION_KINDS["off"], None) for name in table.get("unsupported", ())]
    options += [Option(name, equal(value), value) for name, value in table.get("only", {}).items()]
    options += [read_option(name, OPTION_KINDS | kinds, **entry) for name, entry in table["options"].items()]
    return Format(table["names"], options, table.get("same", {}))


def read_option(
    name: str,
    kinds: Mapping[str, Kind],
    kind: str = "any",
    choices: Sequence[str] | Mapping[str, str] = (),
    default: Any = NO_DEFAULT,
    optional: bool = False,
    fields: Sequence[str] = (),
) -> Option:
    """An option from its description in the table of a format.

    Args:
        name: its name.
        kinds: kinds by their names.
        kind: the name of its kind.
        choices: the allowed strings, instead of a kind; or a mapping from them to the values of the config fields.
        default: see `Option`.
        optional: whether the default is `None`.
        fields: see `Option`.
    """
    return Option(name, choice_kind(choices) if choices else kinds[kind], None if optional else default, fields)


def equal(expected: Any) -> Kind:
    """One value only."""
    return Kind(repr(expected), lambda value: value == expected)


def choice_kind(names: Sequence[str] | Mapping[str, str]) -> Kind:
    """A kind of strings. A mapping gives the value of the config field for each string."""
    convert = names.get if isinstance(names, Mapping) else str
    description = f"one of {', '.join(names)}" if len(names) > 1 else repr(*names)
    return Kind(description, lambda value: isinstance(value, str) and value in names, convert)


def is_size(value: Any, maximum: int) -> bool:
    return configuration.is_int(value) and 1 <= value <= maximum


def read_options(stored: Mapping[Any, Any], table: Format) -> Options:
    """The stored options, with the converted values of those in the table of a format.

    Args:
        stored: the values by their names.
        table: the options that are checked, and the pairs of options that must have the same value.

    Raises:
        ValueError: a value is not allowed, or is a tensor, which has no truth value.
    """
    for name, value in stored.items():
        if isinstance(value, Tensor):
            raise invalid(printable(str(name)), "a plain value", value.shape)
    unconverted = dict(stored)
    converted = dict(stored)
    for option in table.options:
        value = stored.get(option.name)
        if value is None and option.default is not NO_DEFAULT:
            value = option.default
        unconverted[option.name] = converted[option.name] = value
        if value is None and option.default is None:
            continue
        if not option.kind.accepts(value):
            raise invalid(option.name, option.kind.description, value)
        converted[option.name] = option.kind.convert(value)
    check_same(unconverted, table.same)
    return converted


def check_same(values: Mapping[str, Any], same: Mapping[str, str]) -> None:
    """Raise a `ValueError` if an option differs from another one, unless one of both is missing.

    Args:
        values: the options as they are in the checkpoint.
        same: the names of options, with the names of the options that they must equal.
    """
    for name, other in same.items():
        value = values.get(name)
        expected = values.get(other)
        if value is None or expected is None:
            continue
        # Only plain values are compared: comparing lists that contain themselves may never end.
        if not (isinstance(value, PLAIN) and value == expected):
            raise invalid(name, f"{other}={shown_value(expected)}", value)


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


def invalid(name: str, description: str, value: Any) -> ValueError:
    """The error of an option with another value."""
    return ValueError(f"{name} must be {description}, got {shown_value(value)}.")


def shown_value(value: Any) -> str:
    """A value, or only the type of a container of containers, whose text may have any length."""
    items = value if isinstance(value, list | tuple) else [value]
    if all(isinstance(item, PLAIN) for item in items):
        return format_value(value)
    return f"a {type(value).__name__}"
