"""Arguments as fields of dataclasses, and as flags of the command line."""

import argparse
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

MAX_SEED = 2**32 - 1


def split_values(cls: type, values: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The values of the fields of a dataclass, and the other values."""
    remaining = dict(values)
    selected = {entry.name: remaining.pop(entry.name) for entry in fields(cls) if entry.name in values}
    return selected, remaining


def from_values(cls: type, values: Mapping[str, Any]) -> Any:
    """An object of a dataclass with the values of its fields. Fields without a value have their defaults."""
    selected, _ = split_values(cls, values)
    return cls(**selected)


def to_flags(arguments: Mapping[str, Any]) -> list[list[str]]:
    """The arguments as flags of the command line, each with its values, without arguments that are `None`."""
    flags = []
    for name, value in arguments.items():
        if value is False and name.endswith("strategy"):  # YAML reads `no` without quotes as false
            value = "no"
        if isinstance(value, dict):
            value = json.dumps(value)
        if value is not None:
            values = value if isinstance(value, list) else [value]
            flags.append([f"--{name}", *map(str, values)])
    return flags


def finite_number(text: str) -> float:
    """Argument type: a number that is finite. Raises an `ArgumentTypeError` for another text."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise argparse.ArgumentTypeError(f"must be a finite number, got {text!r}.")
    return number
