"""Helpers that several parts of the package share."""

import json
from os import PathLike
from pathlib import Path
from typing import Any

DTYPES = ("float32", "bfloat16", "int8")  # of weights in inference


def read_json(path: str | PathLike) -> dict[str, Any]:
    """Read the object in a JSON file.

    Raises:
        ValueError: the file is missing or damaged, or does not contain an object.
    """
    try:
        content = json.loads(Path(path).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{path} must be a JSON file, but it is missing or damaged.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} must contain a JSON object, got {type(content).__name__}.")
    return content
