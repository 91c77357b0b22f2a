"""Texts in files, compressed or not: lines of plain text, and columns of TSV, CSV, JSONL and Parquet files.

A CSV file follows RFC 4180. In a TSV file, most quotes are part of the text, such as those of a sentence in quotes. As
spreadsheets and pandas write it, a cell may be in quotes for a line break, a tab or a quote, which is doubled:

- A cell that begins and ends with `"` is unquoted if it contains quotes and all of them are doubled.
- A cell in quotes may have line breaks or tabs if its lines are not rows themselves. Not both: otherwise a quote at the
  beginning of a sentence and another one at the end of a later sentence could join their lines.

Bytes that are not UTF-8 become lone surrogates (`surrogateescape`), by which the users of this module find them.
"""

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

from ..base.compressed_files import check_plain_text, file_format, open_binary, stream_name
from ..base.errors import format_names, reraise_as_value_error
from ..tokenization_random_transformer import read_lines, text_lines

TEXT_KEY = "text"
TRANSLATION = "translation"  # the column of `datasets` with texts by language
DEFAULT_KEYS = (TEXT_KEY,), ("source", "target")

# The number of a row and its texts; or the row, if it does not have exactly these texts.
Row = tuple[int, list[str] | str]


@dataclass(frozen=True)
class Columns:
    """The columns of a file to read.

    Args:
        keys: their names, or their numbers from 1 in a TSV or CSV file. The default keys stand for the only columns of
            such a file without a header.
        languages: names of columns that are read instead of missing columns with the default keys.
    """

    keys: tuple[str, ...]
    languages: tuple[str, ...] = ()

    @property
    def are_default(self) -> bool:
        """Whether no other keys were chosen."""
        return self.keys in DEFAULT_KEYS

    def among(self, names: Iterable[str]) -> tuple[str, ...] | None:
        """The keys, or the languages, if all of them are among these names."""
        languages = self.languages if self.are_default else ()
        return next((keys for keys in (self.keys, languages) if keys and {*keys} <= {*names}), None)

    def named(self, name: str | Path, names: Iterable[str]) -> tuple[str, ...]:
        """The same.

        Raises:
            ValueError: neither are.
        """
        if found := self.among(names := [*names]):
            return found
        keys = " and ".join(map(repr, self.keys))
        raise ValueError(f"keys must be columns of {name}, {format_names(names)}, or numbers in a table, got {keys}.")


def read_columns(path: Path, columns: Columns) -> Iterator[Row]:
    """Read columns of a TSV, CSV, JSONL or Parquet file; standard input is TSV.

    Rows of a Parquet file are counted from 1. Lines are counted from 1 including the header.

    Raises:
        ValueError: the file does not have these columns, or is damaged.
    """
    if file_format(path) == "parquet":
        return texts_of(path, _read_parquet(path), columns)
    if file_format(path) == "jsonl":
        return texts_of(path, _read_json(path), columns)
    return _read_table(path, columns)


def read_texts(path: str | PathLike, key: str = TEXT_KEY) -> Iterator[str]:
    """Read monolingual text: the lines of a file, or a column of a TSV, CSV, JSONL or Parquet file.

    Args:
        path: the file; `.gz`, `.zst`, `.bz2` and `.xz` are decompressed, `-` is standard input with one text per line.
        key: the key of the column; by default `"text"`, or the only column of a TSV or CSV file without a header.

    Raises:
        ValueError: a line is not UTF-8, has a NUL character or has no such column; the message gives its number.
    """
    path = Path(path)
    if file_format(path) == "text":
        check_plain_text("a text file", path)
        with open_binary(path) as lines:
            yield from read_lines(lines, stream_name(path))
        return
    for number, texts in read_columns(path, Columns((key,))):
        if isinstance(texts, str):
            raise ValueError(f"{path} must have a text for the key {key!r} on each line, but line {number} has none.")
        if not is_utf8(texts[0]):
            raise ValueError(f"{path} must be UTF-8 text, but line {number} is not.")
        if "\0" in texts[0]:
            raise ValueError(f"{path} must be text without NUL characters, got one in line {number}.")
        yield texts[0].rstrip("\r\n")


def decoded(lines: Iterable[bytes], name: str | PathLike) -> Iterator[str]:
    """Lines of a file without its byte order mark; see `text_lines` for errors."""
    for number, line in enumerate(text_lines(lines, stream_name(name))):
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
        ValueError: the first dictionary does not have all keys.
    """
    keys: tuple[str, ...] = ()
    for number, row, text in rows:
        values = row if isinstance(row, dict) else {}
        if isinstance(nested := values.get(TRANSLATION), dict):
            values = values | nested
        if values and values.get(TRANSLATION, values) is not None:
            keys = keys or columns.named(name, values)
        texts = [value for key in keys if isinstance(value := values.get(key), str)]
        yield number, texts if keys and len(texts) == len(keys) else str(row) if text is None else text


def _read_json(path: Path) -> Iterator[tuple[int, Any, str]]:
    with open_binary(path) as lines:
        for number, line in enumerate(decoded(lines, path), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):  # not JSON, or nested too deeply for the parser
                row = None
            yield number, row, line


def _read_parquet(path: Path) -> Iterator[tuple[int, Any, None]]:
    from pyarrow.parquet import ParquetFile  # slow to import

    with reraise_as_value_error(f"{path} must be a Parquet file"), ParquetFile(path) as file:
        rows = (row for batch in file.iter_batches() for row in batch.to_pylist())
        for number, row in enumerate(rows, start=1):
            yield number, row, None


def _read_table(path: Path, columns: Columns) -> Iterator[Row]:
    are_numbers = all(key.isdecimal() and int(key) > 0 for key in columns.keys)
    positions = [int(key) - 1 for key in columns.keys] if are_numbers else []
    width = len(columns.keys) if columns.are_default else None  # the number of cells of each row, if it is known
    with open_binary(path) as file:
        lines = decoded(file, path)
        rows = _csv_rows(lines) if file_format(path) == "csv" else _tsv_rows(lines, lambda: width)
        for number, cells, line in rows:
            if not positions:
                header = columns.among(cells) if columns.are_default else columns.named(path, cells)
                width = len(cells if header else columns.keys)
                positions = [cells.index(key) for key in header] if header else [*range(width)]
                if header:
                    continue
            fits = (are_numbers or len(cells) == width) and len(cells) > max(positions)
            width = width or len(cells)
            yield number, [cells[position] for position in positions] if fits else line


def _csv_rows(lines: Iterator[str]) -> Iterator[tuple[int, list[str], str]]:
    """Number of the first line, cells and text of each row; without cells and text if the row is not valid."""
    reader = csv.reader(lines, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader) or [""]
            yield number, cells, ",".join(cells)
        except StopIteration:
            return
        except csv.Error:  # an unclosed quote makes one row of many lines
            yield from ((line, [], "") for line in range(number, reader.line_num + 1))


def _tsv_rows(lines: Iterator[str], width: Callable[[], int | None]) -> Iterator[tuple[int, list[str], str]]:
    """Number of the first line, cells and text of each row; `width` returns the expected number of cells."""
    number, ahead = 1, list[str]()  # the next lines, as far as the end of a cell in quotes has been searched in them
    while ahead := ahead or [*islice(lines, 1)]:
        cells, size = ahead[0].rstrip("\r\n").split("\t"), 1
        if '"' in ahead[0]:
            in_quotes, end = _cells_in_quotes(ahead, lines)
            if _is_quoted(in_quotes, ahead[:end], width()):
                cells, size = in_quotes, end
            else:
                cells = [*map(unquoted, cells)]
        yield number, cells, "".join(ahead[:size])
        number += size
        del ahead[:size]


def _cells_in_quotes(ahead: list[str], lines: Iterator[str]) -> tuple[list[str], int]:
    """The first row of `ahead`, with cells in quotes as in CSV, and its number of lines; no cells if it is not valid.

    `ahead` is extended by lines in which a cell in quotes may end.
    """

    def following() -> Iterator[str]:
        yield from ahead
        for line in lines:
            ahead.append(line)
            if "\t" in line and '"' not in line:  # the cell would have both a line break and a tab
                return
            yield line

    reader = csv.reader(following(), delimiter="\t", strict=True)
    try:
        return next(reader), reader.line_num
    except csv.Error:
        return [], 1


def _is_quoted(cells: list[str], lines: list[str], width: int | None) -> bool:
    """Whether these cells are a row with the expected number of cells, and the lines are not rows of as many cells."""
    if not cells or width not in (None, len(cells)) or any("\t" in cell and "\n" in cell for cell in cells):
        return False
    return not all(line.count("\t") + 1 == len(cells) for line in lines)


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
    return '"' + text.replace('"', '""') + '"'
