"""Reads texts from files: lines of plain text, columns of tables, and languages of translation memories.

A CSV file follows RFC 4180. Semicolons are allowed too, since spreadsheets write them in many countries. In a TSV file,
most quotes are part of the text, such as quotes around a sentence. But spreadsheets and pandas quote a cell that
contains a line break, a tab or a quote, and double the quotes within it. Therefore:

- A cell that begins and ends with `"` is unquoted if it contains quotes and all of them are doubled.
- A quoted cell may contain line breaks or tabs if its lines are not rows themselves. It may not contain both, because a
  quote at the beginning of a sentence and a quote at the end of a later sentence could join their lines.

Bytes that are not UTF-8 become lone surrogates (`surrogateescape`), by which callers detect them.
"""

import csv
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from ..base import load_extra
from ..base.compressed_files import open_binary
from ..base.errors import format_names, reraise_as_value_error
from ..base.files import StrPath
from ..base.formats import check_plain_text, file_format
from ..base.streams import stream_name
from ..tokenization_random_transformer import checked_line_bytes, read_lines, unicode_error

TEXT_KEY = "text"
TRANSLATION_COLUMN = "translation"  # the column of `datasets` with texts by language
DEFAULT_KEYS = (TEXT_KEY,), ("source", "target")
DELIMITERS = ",;"  # delimiters of CSV files
BYTE_ORDER_MARK = "\ufeff"

# The number of a row, and its texts, or the complete row if it does not have exactly these texts.
NumberedTexts = tuple[int, list[str] | str]


@dataclass(frozen=True)
class Columns:
    """The columns of a file to read.

    Args:
        keys: names of the columns, or their numbers from 1 in a TSV or CSV file. The default keys also select the
            columns of a file without a header, if it has exactly as many.
        languages: names of columns that are read instead of missing columns with the default keys.

    Raises:
        ValueError: two keys are equal.
    """

    keys: tuple[str, ...]
    languages: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len({*self.keys}) < len(self.keys):
            raise ValueError(f"source_key and target_key must differ, got {self.keys[0]!r} for both.")

    @property
    def are_default(self) -> bool:
        """Whether the keys are the default keys."""
        return self.keys in DEFAULT_KEYS

    @property
    def language_keys(self) -> tuple[str, ...]:
        """The keys for a file whose columns are languages."""
        if self.are_default and self.languages:
            return self.languages
        return self.keys

    @property
    def indices(self) -> list[int]:
        """The indices from 0 of keys that are numbers; empty for names."""
        are_numbers = all(key.isdecimal() and int(key) > 0 for key in self.keys)
        return [int(key) - 1 for key in self.keys] if are_numbers else []

    def among(self, names: Iterable[str]) -> tuple[str, ...] | None:
        """The keys, or else the languages, if all of them are among the names."""
        return next((keys for keys in (self.keys, self.language_keys) if {*names}.issuperset(keys)), None)

    def require_among(self, name: str | Path, names: Sequence[str]) -> tuple[str, ...]:
        """The keys, or the languages, that are among these names.

        Raises:
            ValueError: some of the keys and some of the languages are not.
        """
        keys = self.among(names)
        if keys is None:
            requested = " and ".join(map(repr, self.keys))
            raise ValueError(
                f"keys must be columns of {name}, {format_names(names)}, or all numbers in a table, got {requested}."
            )
        return keys


def read_columns(path: Path, columns: Columns) -> Iterator[NumberedTexts]:
    """Read columns of a TSV, CSV, JSONL or Parquet file, or languages of a TMX file or a zip archive of Moses.

    Standard input is TSV. Rows of a Parquet file and units of a TMX file are counted from 1. Lines are counted from 1
    including the header.

    Raises:
        ValueError: the file does not have these columns, or is damaged.
    """
    match file_format(path):
        case "parquet":
            return texts_of(path, read_parquet(path), columns)
        case "jsonl":
            return texts_of(path, read_json_lines(path), columns)
        case "tmx":
            return load_extra("corpora").read_tmx(path, columns.language_keys)
        case "zip":
            return read_moses(path, columns)
    return read_table(path, columns)


def read_texts(path: StrPath, key: str = TEXT_KEY) -> Iterator[str]:
    """Read monolingual text: the lines of a file, or a column of a file with columns.

    Args:
        path: the file; `.gz`, `.zst`, `.bz2` and `.xz` are decompressed, `-` is standard input with one text per line.
        key: the key of the column; by default `"text"`, or the only column of a TSV or CSV file without a header. In a
            TMX file or a zip archive of Moses, a language.

    Raises:
        ValueError: a line is not UTF-8, has a NUL character or has no such column; the message gives its number.
    """
    path = Path(path)
    if file_format(path) == "text":
        check_plain_text("a text file", path)
        with open_binary(path) as lines:
            for line in read_lines(lines, stream_name(path)):
                yield line.lstrip(BYTE_ORDER_MARK)  # each part of a joined file begins with one
        return
    for number, texts in read_columns(path, Columns((key,))):
        if isinstance(texts, str):
            raise ValueError(
                f"{path} must have a text for the key {key!r} on each line, but line {number} has none. A file without "
                "columns, such as .txt, needs no key."
            )
        if unicode_error(texts[0]):
            raise ValueError(f"{path} must be UTF-8 text, but line {number} is not.")
        if "\0" in texts[0]:
            raise ValueError(f"{path} must be text without NUL characters, got one in line {number}.")
        yield texts[0].rstrip("\r\n")


def decode_lines(lines: Iterable[bytes], name: StrPath) -> Iterator[str]:
    """Decode the lines of a file, without byte order marks, which begin each part of a joined file.

    Raises:
        ValueError: see `checked_line_bytes`.
    """
    for line in checked_line_bytes(lines, stream_name(name)):
        yield line.decode("utf-8", "surrogateescape").lstrip(BYTE_ORDER_MARK)


def texts_of(
    name: str | Path, rows: Iterable[tuple[int, Any, str | None]], columns: Columns
) -> Iterator[NumberedTexts]:
    """The texts of numbered rows, which are dictionaries of texts by key, or have one in `translation`.

    Args:
        name: name of the file for the error message.
        rows: number, value and line of each row; the line is `None` if the file is not text.
        columns: the columns.

    Raises:
        ValueError: the first dictionary does not have all keys.
    """
    keys: tuple[str, ...] = ()
    for number, row, line in rows:
        values = row if isinstance(row, dict) else {}
        translation = values.get(TRANSLATION_COLUMN)
        if isinstance(translation, dict):
            values = values | translation
        if not keys and values and (translation is not None or TRANSLATION_COLUMN not in values):
            keys = columns.require_among(name, [*values])
        texts = [text for key in keys if isinstance(text := values.get(key), str)]
        if not keys or len(texts) < len(keys):
            yield number, str(row) if line is None else line
        else:
            yield number, texts


# The first lines of files that are one JSON document on several lines
JSON_DOCUMENTS = {"[": "a list", "{": "one on several lines"}


def read_json_lines(path: Path) -> Iterator[tuple[int, Any, str]]:
    with open_binary(path) as lines:
        for number, line in enumerate(decode_lines(lines, path), start=1):
            try:
                row = json.loads(line)
            except (ValueError, RecursionError):  # the line is not JSON, or is nested too deeply for the parser
                row = None
            document = "a list" if isinstance(row, list) else JSON_DOCUMENTS.get(line.strip())
            if number == 1 and document is not None:
                raise ValueError(f"{path} must have a JSON object on each line, got {document}.")
            yield number, row, line


def read_parquet(path: Path) -> Iterator[tuple[int, Any, None]]:
    from pyarrow.parquet import ParquetFile  # slow to import

    number = 0
    with reraise_as_value_error(f"{path} must be a Parquet file"), ParquetFile(path) as file:
        for batch in file.iter_batches():
            for row in batch.to_pylist():
                number += 1
                yield number, row, None


def read_moses(path: Path, columns: Columns) -> Iterator[NumberedTexts]:
    with load_extra("corpora").open_members(path, columns.language_keys) as files:
        yield from aligned_rows([*files.items()])


def aligned_rows(files: Sequence[tuple[str | Path, Iterable[bytes]]]) -> Iterator[NumberedTexts]:
    """Rows of texts from aligned files with their names: row n contains line n of each file.

    Raises:
        ValueError: the files have different numbers of lines.
    """
    columns = [decode_lines(lines, name) for name, lines in files]
    for number, row in enumerate(zip_longest(*columns), start=1):
        if None in row:
            names = [name for name, _ in files]
            shorter, longer = names if row[0] is None else names[::-1]
            rest = sum(1 for _ in chain(*columns))
            raise ValueError(
                f"{names[0]} and {names[1]} must have the same number of lines, "
                f"got {number - 1} in {shorter} and {number + rest} in {longer}."
            )
        yield number, [*row]


def read_table(path: Path, columns: Columns) -> Iterator[NumberedTexts]:
    indices = columns.indices
    are_numbers = bool(indices)
    with open_binary(path) as file:
        lines = decode_lines(file, path)
        table: CsvTable = TsvTable(lines)
        if file_format(path) == "csv":
            first = next(lines, "")
            table = CsvTable(chain([first] if first else [], lines), delimiter_of(first, columns))
        if columns.are_default:
            table.width = len(columns.keys)
        for number, cells, line in table.rows():
            if not indices:
                header = columns.among(cells) if columns.are_default else columns.require_among(path, cells)
                if header is not None:
                    indices = [cells.index(key) for key in header]
                    table.width = len(cells)
                    continue
                indices = [*range(len(columns.keys))]
            has_cells = len(cells) > max(indices) and (are_numbers or len(cells) == table.width)
            yield number, [cells[index] for index in indices] if has_cells else line
            table.width = table.width or len(cells)


def delimiter_of(first_line: str, columns: Columns) -> str:
    """`,` or `;`: the first with which a CSV file's first line has the columns, otherwise the more frequent one."""
    for delimiter in DELIMITERS:
        # The csv module has a limit for the length of a cell, and rejects a carriage return outside of quotes.
        beginning = first_line[:10_000].partition("\r")[0]
        [cells] = csv.reader([beginning], delimiter=delimiter)
        has_width = columns.are_default and len(cells) == len(columns.keys)
        has_indices = columns.indices and len(cells) > max(1, *columns.indices)
        if has_width or has_indices or columns.among(cells):
            return delimiter
    return max(DELIMITERS, key=first_line.count)


class CsvTable:
    """The rows of a CSV file."""

    def __init__(self, lines: Iterator[str], delimiter: str):
        self.lines = lines
        self.delimiter = delimiter
        self.width: int | None = None  # the number of cells of each row, if it is known

    def rows(self) -> Iterator[tuple[int, list[str], str]]:
        """Number of the first line, cells and text of each row; without cells and text if the row is not valid."""
        reader = csv.reader(self.lines, delimiter=self.delimiter, strict=True)
        while True:
            number = reader.line_num + 1
            try:
                cells = next(reader) or [""]
            except StopIteration:
                return
            except csv.Error:  # an unclosed quote makes one row of many lines
                for line in range(number, reader.line_num + 1):
                    yield line, [], ""
            else:
                yield number, cells, self.delimiter.join(cells)


class TsvTable(CsvTable):
    """The rows of a TSV file; see the module for its quotes."""

    def __init__(self, lines: Iterator[str]):
        super().__init__(lines, delimiter="\t")
        self.ahead: list[str] = []  # lines that were read to find the end of a quoted cell

    def rows(self) -> Iterator[tuple[int, list[str], str]]:
        """Number of the first line, cells and text of each row."""
        number = 1
        for line in iter(self._next_line, None):
            cells = line.rstrip("\r\n").split(self.delimiter)
            following = 0  # lines of the same row
            if '"' in line:
                in_quotes, following = self._cells_in_quotes(line)
                cells = in_quotes or [*map(unquoted, cells)]
                line += "".join(self.ahead[:following])
                del self.ahead[:following]
            yield number, cells, line
            number += 1 + following

    def _next_line(self) -> str | None:
        """The next line after a row; `None` at the end of the file."""
        if self.ahead:
            return self.ahead.pop(0)
        return next(self.lines, None)

    def _cells_in_quotes(self, line: str) -> tuple[list[str], int]:
        """The cells of a row with quoted cells and its number of further lines; no cells for any other row."""
        reader = csv.reader(self._lines_of_cell(line), delimiter=self.delimiter, strict=True)
        with suppress(csv.Error):
            cells = next(reader)
            following = reader.line_num - 1
            if self._is_row(cells, [line, *self.ahead[:following]]):
                return cells, following
        return [], 0

    def _lines_of_cell(self, line: str) -> Iterator[str]:
        """A line and the following lines, in which a quoted cell may end."""
        yield line
        yield from self.ahead
        for following in self.lines:
            self.ahead.append(following)
            if "\t" in following and '"' not in following:  # the cell would have both a line break and a tab
                return
            yield following

    def _is_row(self, cells: list[str], lines: list[str]) -> bool:
        """Whether these cells are a row with the expected width, and the lines are not rows of as many cells."""
        if not cells or self.width not in (None, len(cells)):
            return False
        if any("\t" in cell and "\n" in cell for cell in cells):
            return False
        return any(line.count("\t") + 1 != len(cells) for line in lines)


def unquoted(cell: str) -> str:
    """The text of a TSV cell. A cell counts as quoted only if a quote within it is doubled."""
    if not (cell.startswith('"') and cell.endswith('"')):
        return cell
    inside = cell[1:-1]
    is_quoted = '""' in inside and '"' not in inside.replace('""', "")
    return inside.replace('""', '"') if is_quoted else cell


def quoted(text: str) -> str:
    """A TSV cell with a text without tabs and line breaks. `unquoted` restores the text."""
    return text if unquoted(text) == text else '"' + text.replace('"', '""') + '"'
