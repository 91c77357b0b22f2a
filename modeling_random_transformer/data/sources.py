"""Where parallel text comes from: two aligned files, a TSV, a JSONL, or whatever `datasets` loads. Read as a stream."""

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from pathlib import Path

from datasets import Dataset, IterableDataset

from .report import Report

# A line's number, and its two sides or what is wrong with it.
Line = tuple[int, str, str] | tuple[int, str]
WITHOUT_PARTNER = "without a partner"  # a line beyond the end of the other file


@dataclass(frozen=True)
class ParallelText:
    """Where a corpus is. Give two aligned text files, or one file of both sides.

    Args:
        source: a text file with one source a line; or a `.tsv` file with source and target in two columns; or a
            `.jsonl` (`.json`) file with an object a line.
        target: the text file aligned with the first; `None` for the other two kinds.
        source_key: the name of the source in a JSON object.
        target_key: the name of the target in a JSON object.

    Raises:
        ValueError: a file is missing, or `target` is missing or too many for the kind of the first.
    """

    source: Path
    target: Path | None = None
    source_key: str = "source"
    target_key: str = "target"

    def __post_init__(self) -> None:
        for name in ("source", "target"):
            path = getattr(self, name)
            if path is not None and not Path(path).is_file():
                raise ValueError(f"{name} must be a file, got {path}.")
        if self._in_one_file() != (self.target is None):
            raise ValueError(
                "a .tsv or .jsonl file holds both sides and takes no target, any other takes one, "
                f"got source={self.source} and target={self.target}."
            )

    def __str__(self) -> str:
        return str(self.source) if self.target is None else f"{self.source} and {self.target}"

    def _in_one_file(self) -> bool:
        return Path(self.source).suffix in (".tsv", ".json", ".jsonl")

    def lines(self) -> Iterator[Line]:
        """Every line as its number (from 1), source and target; or, if it is broken, its number and how."""
        if self.target is not None:
            yield from _aligned_lines(Path(self.source), Path(self.target))
        elif Path(self.source).suffix == ".tsv":
            yield from _parsed_lines(Path(self.source), _split_tabs)
        else:
            yield from _parsed_lines(Path(self.source), partial(_split_json, keys=(self.source_key, self.target_key)))

    def stamp(self) -> str:
        """Sizes and times of the files, by which a cache knows a corpus that has changed."""
        files = [Path(path) for path in (self.source, self.target) if path is not None]
        return str([(path.stat().st_size, path.stat().st_mtime_ns) for path in files])

    def check(self) -> Report:
        """Read everything once and report what is broken."""
        return _check(self)


@dataclass(frozen=True)
class DatasetText:
    """A corpus that `datasets` has loaded, from the hub, a folder or anywhere.

    Args:
        dataset: rows, memory-mapped or streamed.
        source_key: the column of the sources, or the name of their language in a `translation` column.
        target_key: the same for the targets.
        name: what reports call the corpus.

    Raises:
        ValueError: the dataset has no such columns.
    """

    dataset: Dataset | IterableDataset
    source_key: str = "source"
    target_key: str = "target"
    name: str = "the dataset"

    def __post_init__(self) -> None:
        columns = self.dataset.column_names or [self.source_key, self.target_key]  # a stream may not know its columns
        if "translation" not in columns and not {self.source_key, self.target_key} <= set(columns):
            raise ValueError(
                f"source_key and target_key must be columns of {self.name}, {', '.join(columns)}, "
                f"got {self.source_key!r} and {self.target_key!r}."
            )

    def __str__(self) -> str:
        return self.name

    def lines(self) -> Iterator[Line]:
        """Every row as its number (from 1), source and target; or, if it is broken, its number and how."""
        for number, row in enumerate(self.dataset, start=1):
            sides = row.get("translation", row)
            source, target = (sides.get(key) for key in (self.source_key, self.target_key))
            if isinstance(source, str) and isinstance(target, str):
                yield _not_empty(number, source, target)
            else:
                yield number, "not of two sides"

    def stamp(self) -> str:
        """What the library calls this state of the dataset."""
        return str(self.dataset._fingerprint) if isinstance(self.dataset, Dataset) else self.name

    def check(self) -> Report:
        """Read everything once and report what is broken."""
        return _check(self)


Corpus = ParallelText | DatasetText


def _check(text: Corpus) -> Report:
    report = Report(str(text))
    for line in text.lines():
        report.lines += 1
        if len(line) == 2:
            report.add(line[1], line[0])
    return report


def _aligned_lines(source: Path, target: Path) -> Iterator[Line]:
    for number, sides in enumerate(zip_longest(_raw_lines(source), _raw_lines(target)), start=1):
        if None in sides:
            yield number, WITHOUT_PARTNER
        else:
            yield _pair(number, sides)


def _parsed_lines(path: Path, split: Callable[[bytes], tuple[bytes, bytes] | None]) -> Iterator[Line]:
    for number, line in enumerate(_raw_lines(path), start=1):
        sides = split(line)
        yield (number, "not of two sides") if sides is None else _pair(number, sides)


def _raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, without the byte-order mark that some editors put in front."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines):
            yield line if number else line.removeprefix(BOM_UTF8)


def _split_tabs(line: bytes) -> tuple[bytes, bytes] | None:
    sides = line.rstrip(b"\r\n").split(b"\t")
    return (sides[0], sides[1]) if len(sides) == 2 else None


def _split_json(line: bytes, keys: tuple[str, str]) -> tuple[bytes, bytes] | None:
    try:
        row = json.loads(line)
        sides = tuple(row[key].encode("utf-8", "surrogatepass") for key in keys)
    # Not JSON, nested too deeply to be parsed, no such key, or no text under it.
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    return sides[0], sides[1]


def _pair(number: int, sides: tuple[bytes, bytes]) -> Line:
    try:
        source, target = (side.rstrip(b"\r\n").decode("utf-8") for side in sides)
    except UnicodeDecodeError:
        return number, "not UTF-8"
    return _not_empty(number, source, target)


def _not_empty(number: int, source: str, target: str) -> Line:
    return (number, source, target) if source.strip() and target.strip() else (number, "with an empty side")
