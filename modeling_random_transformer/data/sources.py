"""Sources of parallel text: two aligned files, a TSV or JSONL file, or a dataset of the `datasets` library."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from datasets import Dataset, IterableDataset

from ..utils.text import decode_line

# Reasons why a line is invalid.
EMPTY = "with an empty source or target"
NOT_A_PAIR = "without exactly one source and one target"
NOT_UTF8 = "not UTF-8"
UNALIGNED = "beyond the end of the other file"

Languages = tuple[str, str]  # codes of the source's and the target's language


@dataclass(slots=True)
class ParallelLine:
    """A source text and its translation; `number` is the line's position in the corpus, counted from 1.

    `languages` are those of the two texts, for a tokenizer with language tags.
    """

    number: int
    source: str
    target: str
    languages: Languages | None = None


@dataclass(slots=True)
class InvalidLine:
    """A line without a valid pair of texts, and the reason."""

    number: int
    reason: str


Line = ParallelLine | InvalidLine


@dataclass(frozen=True)
class ParallelText:
    """Parallel text in two aligned files, or in one file with both sides.

    Args:
        source: a text file with one source per line; or a `.tsv` file with the columns source and target; or a
            `.jsonl` (`.json`) file with one object per line.
        target: the text file with the translations, line by line; `None` for a `.tsv` or `.jsonl` file.
        source_key: key of the source in a JSON object.
        target_key: key of the target in a JSON object.

    Raises:
        ValueError: a file is missing, or `target` does not match the format of `source`.
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
        if self._is_single_file() != (self.target is None):
            raise ValueError(
                "target must be given with a text file and omitted with a .tsv or .jsonl file, "
                f"got source={self.source} and target={self.target}."
            )

    def __str__(self) -> str:
        return str(self.source) if self.target is None else f"{self.source} and {self.target}"

    def _is_single_file(self) -> bool:
        return Path(self.source).suffix in (".tsv", ".json", ".jsonl")

    def lines(self) -> Iterator[Line]:
        """Read the corpus line by line."""
        if self.target is not None:
            return _read_aligned(Path(self.source), Path(self.target))
        if Path(self.source).suffix == ".tsv":
            return _read_tsv(Path(self.source))
        return _read_jsonl(Path(self.source), (self.source_key, self.target_key))

    def fingerprint(self) -> str:
        """Sizes and modification times of the files: a cache key that changes with the corpus."""
        files = [Path(path) for path in (self.source, self.target) if path is not None]
        return str([(path.stat().st_size, path.stat().st_mtime_ns) for path in files])


@dataclass(frozen=True)
class DatasetText:
    """Parallel text in a dataset of the `datasets` library.

    Args:
        dataset: a memory-mapped or streaming dataset.
        source_key: the column of the sources, or their language code in a `translation` column.
        target_key: the same for the targets.
        name: name of the corpus in reports and error messages.

    Raises:
        ValueError: the dataset does not have these columns.
    """

    dataset: Dataset | IterableDataset
    source_key: str = "source"
    target_key: str = "target"
    name: str = "the dataset"

    def __post_init__(self) -> None:
        columns = self.dataset.column_names or [self.source_key, self.target_key]  # a stream may have no column names
        if "translation" not in columns and not {self.source_key, self.target_key} <= set(columns):
            raise ValueError(
                f"source_key and target_key must be columns of {self.name}, {', '.join(columns)}, "
                f"got {self.source_key!r} and {self.target_key!r}."
            )

    def __str__(self) -> str:
        return self.name

    def lines(self) -> Iterator[Line]:
        """Read the dataset row by row."""
        for number, row in enumerate(self.dataset, start=1):
            texts = row.get("translation", row)
            source, target = texts.get(self.source_key), texts.get(self.target_key)
            if isinstance(source, str) and isinstance(target, str):
                yield _require_content(number, source, target)
            else:
                yield InvalidLine(number, NOT_A_PAIR)

    def fingerprint(self) -> str:
        """The fingerprint that `datasets` computes; the name for a streaming dataset, which has none."""
        return str(self.dataset._fingerprint) if isinstance(self.dataset, Dataset) else self.name


Corpus = ParallelText | DatasetText


def _read_aligned(source_path: Path, target_path: Path) -> Iterator[Line]:
    with source_path.open("rb") as sources, target_path.open("rb") as targets:
        for number, (source, target) in enumerate(zip_longest(sources, targets), start=1):
            if source is None or target is None:
                yield InvalidLine(number, UNALIGNED)
            else:
                yield _decode_pair(number, source, target)


def _read_tsv(path: Path) -> Iterator[Line]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            columns = line.rstrip(b"\r\n").split(b"\t")
            yield _decode_pair(number, *columns) if len(columns) == 2 else InvalidLine(number, NOT_A_PAIR)


def _read_jsonl(path: Path, keys: tuple[str, str]) -> Iterator[Line]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                row = json.loads(line)
                source, target = (row[key].encode("utf-8", "surrogatepass") for key in keys)
            # Not JSON, nested too deeply for the parser, a missing key, or a value that is not a string.
            except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
                yield InvalidLine(number, NOT_A_PAIR)
            else:
                yield _decode_pair(number, source, target)


def _decode_pair(number: int, source: bytes, target: bytes) -> Line:
    try:
        return _require_content(number, decode_line(source, "source", number), decode_line(target, "target", number))
    except ValueError:
        return InvalidLine(number, NOT_UTF8)


def _require_content(number: int, source: str, target: str) -> Line:
    if source.strip() and target.strip():
        return ParallelLine(number, source, target)
    return InvalidLine(number, EMPTY)
