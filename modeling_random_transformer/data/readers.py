"""Columns of text in files: TSV, JSONL and Parquet, and lines of plain text, compressed or not.

A column is selected by its key. In a TSV file, the key is a name in the header line, or a number, counted from 1 as
`cut -f` does, of a file without a header. In a JSONL file, it is a key of the objects; in a Parquet file, the name or
the number of a column, or a language of the column `translation`.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import pyarrow as pa
from pyarrow.parquet import ParquetFile

from ..utils.compressed_files import is_standard_stream, open_binary
from ..utils.errors import first_line, format_names
from ..utils.file_formats import file_format
from ..utils.text import decode_line, read_lines

TEXT_KEYS = ("text",)

Row = tuple[int, list[bytes] | bytes]


def read_columns(path: Path, keys: Sequence[str], default_keys: Sequence[str]) -> Iterator[Row]:
    """Read columns of a TSV, JSONL or Parquet file.

    Args:
        path: the file; standard input is TSV.
        keys: the keys of the columns.
        default_keys: the keys that stand for the first columns of a TSV file without a header, which must have no
            other columns.

    Yields:
        The number of each row, and the list of its texts as bytes; the complete row as bytes if it does not have
        exactly these texts. Rows of a Parquet file are counted from 1. Lines are counted from 1 including the header.

    Raises:
        ValueError: the file does not have these columns, or is damaged.
    """
    if file_format(path) == "parquet":
        return _read_parquet(path, keys)
    if file_format(path) == "jsonl":
        return _read_jsonl(path, keys)
    return _read_tsv(path, keys, default_keys)


def read_texts(path: str | PathLike, key: str = TEXT_KEYS[0]) -> Iterator[str]:
    """Read monolingual text: the lines of a file, or a column of a TSV, JSONL or Parquet file.

    Args:
        path: the file; `.gz` and `.zst` are decompressed, `-` is standard input with one text per line.
        key: the key of the column; by default `"text"`, or the only column of a TSV file without a header.

    Raises:
        ValueError: a line is not UTF-8 or has no such column; the message gives its number.
    """
    path = Path(path)
    if file_format(path) == "text":
        with open_binary(path) as file:
            yield from read_lines(file, "stdin" if is_standard_stream(path) else str(path))
        return
    for number, texts in read_columns(path, (key,), TEXT_KEYS):
        if isinstance(texts, bytes):
            raise ValueError(f"{path} must have a text for the key {key!r} on each line, but line {number} has none.")
        yield decode_line(texts[0], str(path), number)


@dataclass
class _Layout:
    """The columns of a TSV file to read, the number of columns of each line if it is fixed, and the header."""

    columns: list[int]
    width: int | None
    has_header: bool


def _read_tsv(path: Path, keys: Sequence[str], default_keys: Sequence[str]) -> Iterator[Row]:
    with open_binary(path) as lines:
        for number, line in enumerate(lines, start=1):
            values = line.rstrip(b"\r\n").split(b"\t")
            if number == 1:
                layout = _layout(path, values, keys, default_keys)
                if layout.has_header:
                    continue
            if layout.width in (None, len(values)) and len(values) > max(layout.columns):
                yield number, [values[column] for column in layout.columns]
            else:
                yield number, line


def _layout(path: Path, first: list[bytes], keys: Sequence[str], default_keys: Sequence[str]) -> _Layout:
    """The columns of a TSV file, from its first line."""
    if all(map(_is_number, keys)):
        return _Layout([int(key) - 1 for key in keys], width=None, has_header=False)
    names = b"\t".join(first).decode("utf-8-sig", "replace").split("\t")
    if set(keys) <= set(names):
        return _Layout([names.index(key) for key in keys], width=len(names), has_header=True)
    if tuple(keys) == tuple(default_keys):
        return _Layout(list(range(len(keys))), width=len(keys), has_header=False)
    raise _unknown_columns(path, names, keys)


def _read_jsonl(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    with open_binary(path) as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                texts = [row[key].encode("utf-8", "surrogatepass") for key in keys]
            # Not JSON, nested too deeply for the parser, a missing key, or a value that is not a string.
            except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
                yield number, line
            else:
                yield number, texts


def _read_parquet(path: Path, keys: Sequence[str]) -> Iterator[Row]:
    try:
        with ParquetFile(path) as file:
            names = file.schema_arrow.names
            nested = "translation" in names and not set(keys) <= set(names)
            columns = ["translation"] if nested else [_parquet_column(path, names, key, keys) for key in keys]
            batches = file.iter_batches(columns=list(dict.fromkeys(columns)))
            for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
                texts = list(map((row["translation"] or {}).get, keys) if nested else map(row.get, columns))
                is_text = all(isinstance(text, str) for text in texts)
                yield number, [text.encode() for text in texts] if is_text else str(row).encode()
    except pa.ArrowException as error:
        raise ValueError(f"{path} must be a Parquet file, got an error: {first_line(error)}.") from error


def _parquet_column(path: Path, names: list[str], key: str, keys: Sequence[str]) -> str:
    if key in names:
        return key
    if _is_number(key) and int(key) <= len(names):
        return names[int(key) - 1]
    raise _unknown_columns(path, names, keys)


def _is_number(key: str) -> bool:
    return key.isdecimal() and int(key) > 0


def _unknown_columns(path: Path, names: Sequence[str], keys: Sequence[str]) -> ValueError:
    columns = " and ".join(map(repr, keys))
    return ValueError(f"keys must be columns of {path}, {format_names(names)}, or their numbers, got {columns}.")
