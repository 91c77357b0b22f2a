"""Formats of files with text, by suffix."""

from os import PathLike
from pathlib import Path

from .compressed_files import uncompressed_suffix

FORMATS = {".tsv": "tsv", ".csv": "csv", ".jsonl": "jsonl", ".json": "jsonl", ".parquet": "parquet"}


def file_format(path: str | PathLike) -> str:
    """`"tsv"`, `"csv"`, `"jsonl"`, `"parquet"` or `"text"`, by the suffix before `.gz` or `.zst`."""
    return FORMATS.get(uncompressed_suffix(path), "text")


def check_plain_text(name: str, path: str | PathLike) -> None:
    """Raise a `ValueError` that begins with `name` for a file with columns, whose lines are not texts."""
    if file_format(path) != "text":
        formats = ", ".join(FORMATS)
        raise ValueError(f"{name} must be a file with one text per line, not {formats}, got {str(Path(path))!r}.")
