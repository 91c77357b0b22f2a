"""Helpers that several parts of the package share."""

import hashlib
import json
import sys
from os import PathLike
from pathlib import Path
from typing import Any

from transformers.utils.logging import tqdm

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


def file_digest(path: Path) -> str:
    """Size and SHA-256 of a file."""
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256")
    return f"{path.stat().st_size} bytes, sha256 {digest.hexdigest()}"


def progress_bar(total: int | None = None, shown: bool | None = None, unit: str = "text") -> tqdm:
    """A progress bar on stderr; by default after a second, or after a minute in a log file.

    Args:
        total: the number of items; `None` or 0 if it is unknown.
        shown: show it at once, or not at all.
        unit: what it counts.
    """
    interactive = sys.stderr.isatty()
    return tqdm(
        total=total or None,
        unit=unit,
        disable=shown is False,
        delay=0 if shown else 1 if interactive else 60,
        mininterval=0.1 if interactive or shown else 60,
    )
