"""Texts in files, compressed or not: lines of plain text, and columns of TSV, CSV, JSONL and Parquet files.

A CSV file follows RFC 4180. In a TSV file, a cell is quoted only if it has to be, as spreadsheets and pandas write it:
it begins and ends with `"`, and a quote within it, which is doubled, a tab or a line break is the reason. Other quotes
in a TSV file are part of the text, such as those of a sentence in quotes.

Bytes that are not UTF-8 become lone surrogates (`surrogateescape`), by which the users of this module find them.
"""

import csv
import json
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice, tee
from os import PathLike
from pathlib import Path
from typing import Any

from ..utils.compressed_files import file_format, is_standard_stream, open_binary
from ..utils.errors import first_line, format_names
from ..utils.text import read_lines

TEXT_KEYS = ("text",)
TRANSLATION = "translation"  # the column of `datasets` with texts by language
MAX_CELL_LINES = 100  # of a quoted cell in a TSV file

# The number of a row and its texts; or the row, if it does not have exactly these texts.
Row = tuple[int, list[str] | str]


@dataclass(frozen=True)
class Columns:
    """The columns of a file to read.

    Args:
        keys: their names, or their numbers from 1.
        default_keys: the keys that stand for the only columns of a TSV or CSV file without a header.
        languages: names of columns that are read instead of missing columns with the default keys.
    """

    keys: tuple[str, ...]
    default_keys: tuple[str, ...]
    languages: tuple[str, ...] | None = None

    @property
    def are_default(self) -> bool:
        """Whether no other keys were chosen."""
        return self.keys == self.default_keys

    def among(self, names: Iterable[str]) -> tuple[str, ...] | None:
        """The keys, or the languages, if all of them are among these names."""
        alternatives = [self.keys, *([self.languages] if self.languages and self.are_default else [])]
        return next((keys for keys in alternatives if {*keys} <= {*names}), None)

    def numbers(self) -> list[int] | None:
        """The positions of the columns, from 0, if all keys are numbers."""
        return [int(key) - 1 for key in self.keys] if all(map(_is_number, self.keys)) else None

    def error(self, name: str | Path, names: Iterable[str]) -> ValueError:
        """The error of a file without these columns."""
        keys = " and ".join(map(repr, self.keys))
        return ValueError(f"keys must be columns of {name}, {format_names(names)}, or their numbers, got {keys}.")


def read_columns(path: Path, columns: Columns) -> Iterator[Row]:
    """Read columns of a TSV, CSV, JSONL or Parquet file; standard input is TSV.

    Rows of a Parquet file are counted from 1. Lines are counted from 1 including the header.

    Raises:
        ValueError: the file does not have these columns, or is damaged.
    """
    if file_format(path) == "parquet":
        return texts_of(path, _read_parquet(path, columns), columns)
    if file_format(path) == "jsonl":
        return texts_of(path, _read_json(path), columns)
    return _read_table(path, columns)


def read_texts(path: str | PathLike, key: str = TEXT_KEYS[0]) -> Iterator[str]:
    """Read monolingual text: the lines of a file, or a column of a TSV, CSV, JSONL or Parquet file.

    Args:
        path: the file; `.gz` and `.zst` are decompressed, `-` is standard input with one text per line.
        key: the key of the column; by default `"text"`, or the only column of a TSV or CSV file without a header.

    Raises:
        ValueError: a line is not UTF-8 or has no such column; the message gives its number.
    """
    path = Path(path)
    if file_format(path) == "text":
        with open_binary(path) as file:
            yield from read_lines(file, "stdin" if is_standard_stream(path) else str(path))
        return
    for number, texts in read_columns(path, Columns((key,), TEXT_KEYS)):
        if isinstance(texts, str):
            raise ValueError(f"{path} must have a text for the key {key!r} on each line, but line {number} has none.")
        if not is_utf8(texts[0]):
            raise ValueError(f"{path} must be UTF-8 text, but line {number} is not.")
        yield texts[0].rstrip("\r\n")


def decoded(lines: Iterable[bytes]) -> Iterator[str]:
    """Lines of a file without its byte order mark."""
    for number, line in enumerate(lines):
        yield line.decode("utf-8" if number else "utf-8-sig", "surrogateescape")


def is_utf8(text: str) -> bool:
    """Whether a text has no lone surrogates, which stand for other bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def texts_of(name: str | Path, rows: Iterable[tuple[int, Any, str | None]], columns: Columns) -> Iterator[Row]:
    """The texts of numbered rows, which are dictionaries of texts by key, or have one in `translation`.

    Args:
        name: name of the file for the error message.
        rows: number, value and text of each row; `None` for the text of the value.
        columns: the columns.

    Raises:
        ValueError: the first dictionary has none of the keys.
    """
    keys, is_nested = None, False
    for number, row, text in rows:
        if keys is None and isinstance(row, dict):
            keys, is_nested = _keys_of(name, row, columns)
        values = row.get(TRANSLATION) if is_nested and isinstance(row, dict) else row
        found = [values.get(key) for key in keys] if keys and isinstance(values, dict) else []
        texts = [value for value in found if isinstance(value, str)]
        is_valid = keys is not None and len(texts) == len(keys)
        yield number, texts if is_valid else str(row) if text is None else text


def _keys_of(name: str | Path, row: dict[str, Any], columns: Columns) -> tuple[tuple[str, ...], bool]:
    """The keys of the texts in the rows of a file, and whether they are those of `translation`."""
    nested = row.get(TRANSLATION)
    for names, is_nested in ((row, False), (nested if isinstance(nested, dict) else {}, True)):
        if keys := columns.among(names):
            return keys, is_nested
    if TRANSLATION in row and nested is None:
        return columns.keys, True
    if not {*columns.keys} & {*row}:
        raise columns.error(name, [*row, *(nested if isinstance(nested, dict) else ())])
    return columns.keys, False


def _read_json(path: Path) -> Iterator[tuple[int, Any, str]]:
    with open_binary(path) as lines:
        for number, line in enumerate(decoded(lines), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):  # not JSON, or nested too deeply for the parser
                row = None
            yield number, row, line


def _read_parquet(path: Path, columns: Columns) -> Iterator[tuple[int, Any, None]]:
    import pyarrow as pa  # slow to import
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as file:
            names = file.schema_arrow.names
            by_number = {str(number): name for number, name in enumerate(names, start=1)}
            keys = columns.among([*names, *by_number])
            if keys is None and TRANSLATION not in names:
                raise columns.error(path, names)
            selected = [by_number.get(key, key) for key in keys] if keys else names
            batches = file.iter_batches(columns=list(dict.fromkeys(selected)))
            for number, row in enumerate((row for batch in batches for row in batch.to_pylist()), start=1):
                yield number, row | {key: row[by_number[key]] for key in keys or () if key not in row}, None
    except pa.ArrowException as error:
        raise ValueError(f"{path} must be a Parquet file, got an error: {first_line(error)}.") from error


@dataclass
class _Layout:
    """The columns of a table to read, the number of columns of each row if it is fixed, and whether it has a header."""

    columns: list[int]
    width: int | None
    has_header: bool

    @classmethod
    def of(cls, path: Path, first: list[str], columns: Columns) -> "_Layout":
        """The layout of a table with this first row."""
        if (numbers := columns.numbers()) is not None:
            return cls(numbers, width=None, has_header=False)
        if keys := columns.among(first):
            return cls([first.index(key) for key in keys], width=len(first), has_header=True)
        if columns.are_default:
            return cls([*range(len(columns.keys))], width=len(columns.keys), has_header=False)
        raise columns.error(path, first)

    def fits(self, cells: Sequence[str]) -> bool:
        """Whether a row has these columns."""
        return self.width in (None, len(cells)) and len(cells) > max(self.columns)


def _read_table(path: Path, columns: Columns) -> Iterator[Row]:
    layout: _Layout | None = None

    def fits(cells: Sequence[str]) -> bool:
        if layout is None:  # the first row: a header, or texts in the default columns
            return columns.among(cells) is not None or not columns.are_default or len(cells) == len(columns.keys)
        return layout.fits(cells)

    with open_binary(path) as file:
        lines = decoded(file)
        for number, cells, line in _csv_rows(lines) if file_format(path) == "csv" else _tsv_rows(lines, fits):
            if layout is None:
                layout = _Layout.of(path, cells, columns)
                if layout.has_header:
                    continue
            yield number, [cells[column] for column in layout.columns] if layout.fits(cells) else line


def _csv_rows(lines: Iterator[str]) -> Iterator[tuple[int, list[str], str]]:
    """Number of the first line, cells and text of each row; without cells if the row is not valid."""
    ahead, behind = tee(lines)
    reader = csv.reader(ahead, strict=True)
    while True:
        first, cells = reader.line_num, []
        try:
            cells = next(reader) or [""]
        except StopIteration:
            return
        except csv.Error:
            pass
        yield first + 1, cells, "".join(islice(behind, reader.line_num - first))


def _tsv_rows(lines: Iterator[str], fits: Callable[[Sequence[str]], bool]) -> Iterator[tuple[int, list[str], str]]:
    """The same for TSV. A line that does not fit is read with quoted tabs and line breaks, if it fits then."""
    number, ahead = 1, deque[str]()
    while line := ahead.popleft() if ahead else next(lines, ""):
        cells, count = line.rstrip("\r\n").split("\t"), 1
        if '"' in line and fits(cells):
            cells = [*map(unquoted, cells)]
        elif '"' in line:
            ahead.extend(islice(lines, MAX_CELL_LINES - len(ahead)))
            reader = csv.reader([line, *ahead], delimiter="\t", strict=True)
            with suppress(csv.Error):
                if fits(parsed := next(reader)):
                    cells, count = parsed, reader.line_num
        yield number, cells, "".join([line, *(ahead.popleft() for _ in range(count - 1))])
        number += count


def unquoted(cell: str) -> str:
    """The text of a cell of a TSV file, which is quoted only if a quote within it is doubled."""
    inside = cell[1:-1]
    if cell[:1] == cell[-1:] == '"' and '""' in inside and '"' not in inside.replace('""', ""):
        return inside.replace('""', '"')
    return cell


def quoted(text: str) -> str:
    """A text without tabs and line breaks as a cell of a TSV file, from which `unquoted` restores it."""
    if unquoted(text) == text:
        return text
    doubled = text.replace('"', '""')
    return f'"{doubled}"'


def _is_number(key: str) -> bool:
    return key.isdecimal() and int(key) > 0
