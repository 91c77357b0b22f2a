"""Arguments as fields of dataclasses, and as flags of the command line."""

import argparse
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from typing import Any

MAX_SEED = 2**32 - 1


def instances(classes: Iterable[type], values: Mapping[str, Any]) -> tuple[Any, ...]:
    """An object of each dataclass with the values of its fields. Fields without a value have their defaults."""
    objects = []
    for dataclass in classes:
        names = [entry.name for entry in fields(dataclass) if entry.name in values]
        objects.append(dataclass(**{name: values[name] for name in names}))
    return tuple(objects)


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
