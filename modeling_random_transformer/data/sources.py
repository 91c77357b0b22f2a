"""Sources of parallel text: two aligned files, a file with both sides, or a dataset of `datasets`."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..base.compressed_files import open_binary
from ..base.digests import file_digest
from ..base.formats import SPREADSHEETS, check_plain_text, file_format, text_suffix
from ..base.streams import check_readable, is_standard_stream
from ..inputs_random_transformer import Languages
from ..tokenization_random_transformer import is_blank, is_iterable_of_texts, unicode_error
from .readers import TRANSLATION_COLUMN, Columns, NumberedTexts, aligned_rows, read_columns, texts_of

if TYPE_CHECKING:
    from datasets import Dataset, IterableDataset  # slow to import

SIDES = ("source", "target")
Pair = tuple[str, str]  # a source and a target

# Reasons why a line is invalid.
EMPTY_SIDE = "with an empty source or target"
NOT_A_PAIR = "without exactly one source and one target"
NOT_UTF8 = "not UTF-8"
NUL = "with a NUL character"

EXAMPLE_CHARACTERS = 200  # the part of each text of an invalid line that is shown
NO_LANGUAGES = Languages()
SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(slots=True)
class ParallelLine:
    """A source text and its translation; `number` is the line's position in the corpus, counted from 1.

    `languages` are those of the corpus, for a tokenizer with language tags.
    """

    number: int
    source: str
    target: str
    languages: Languages = NO_LANGUAGES


@dataclass(slots=True)
class InvalidLine:
    """A line without a valid pair of texts, and the reason.

    `source` and `target` are the beginnings of the texts, as an example. A line that is not a pair has only a `source`,
    the beginning of the line. Bytes that are not UTF-8 are replaced.
    """

    number: int
    reason: str
    source: str = field(default="", compare=False)
    target: str = field(default="", compare=False)


Line = ParallelLine | InvalidLine


@dataclass(frozen=True, kw_only=True)
class Corpus(ABC):
    """Parallel text.

    Args:
        source_key: the column of the sources, for text with columns.
        target_key: the column of the targets.
        languages: languages of source and target. They are also names of columns, if the default columns are missing.
        weight: how often each pair occurs per training epoch.
    """

    source_key: str = "source"
    target_key: str = "target"
    languages: Languages = NO_LANGUAGES
    weight: int = 1

    @property
    def columns(self) -> Columns:
        """The columns of source and target."""
        return Columns((self.source_key, self.target_key), self.languages.codes)

    @property
    def direction(self) -> str | None:
        """The languages, such as `"en-de"`; `None` without languages."""
        return "-".join(self.languages.codes) or None

    @property
    def files(self) -> dict[str, Path]:
        """The paths, by the names of the arguments; empty for text that is not in files."""
        return {}

    def require_files(self) -> None:
        """Raise a `ValueError` if a side is standard input or another pipe, which can be read only once."""
        for path in self.files.values():
            if is_standard_stream(path) or not path.is_file():
                raise ValueError(f"the corpus must be in files, since it is read more than once, got the pipe {path}.")

    def lines(self) -> Iterator[Line]:
        """Read the corpus line by line.

        Raises:
            ValueError: a file does not have the columns, the files have different numbers of lines, or a compressed
                file is damaged or incomplete.
        """
        for number, texts in self.rows():
            if isinstance(texts, str):
                yield invalid_line(number, NOT_A_PAIR, texts)
            else:
                yield parse_pair(number, texts[0], texts[1], self.languages)

    @abstractmethod
    def rows(self) -> Iterator[NumberedTexts]:
        """Read the texts of each line; raises the errors of `lines`."""

    @abstractmethod
    def fingerprint(self) -> str:
        """A string that identifies the contents."""


@dataclass(frozen=True)
class ParallelText(Corpus):
    """Parallel text in two aligned files, or in one file with both sides.

    Text, `.tsv`, `.csv` and `.jsonl` files may be compressed. `-` is standard input. Pipes can be read only once.

    Args:
        source: a text file with one source per line; or a file with a column for each side, `.tsv`, `.csv`, `.jsonl`
            (`.json`) or `.parquet`; or a file with a text for each language, `.tmx` or a `.zip` of OPUS with the files
            of Moses. Without `target`, standard input is TSV.
        target: the text file with the translations, line by line; `None` for a file with a column for each side.
        source_key: the column of the source: a name in the header of a TSV or CSV file, or the number (from 1) of a
            column of one without a header; a key of a JSON object; a Parquet column; a language of the object
            `translation`; or a language of a `.tmx` or `.zip` file, also in another spelling. By default, a TSV or CSV
            file without the header names `source` and `target` has two columns.
        target_key: the same for the target.
        languages, weight: see `Corpus`.

    Raises:
        ValueError: a file is missing, or `target` does not match the format of `source`.
    """

    source: Path
    target: Path | None = None

    def __post_init__(self) -> None:
        for name, path in self.files.items():
            check_readable(name, path)
        are_streams = all(map(is_standard_stream, self.files.values()))
        has_both_sides = are_streams or file_format(self.source) != "text"
        if has_both_sides and self.target is not None:
            raise ValueError(f"target must be None with both sides in {self.source}, got {self.target}.")
        if not has_both_sides and self.target is None:
            advice = ": save a spreadsheet as CSV UTF-8" if text_suffix(self.source) in SPREADSHEETS else ""
            raise ValueError(
                "source must be a .tsv, .csv, .jsonl, .parquet, .tmx or .zip file with both sides, or a text file "
                f"beside one of the targets, got {str(self.source)!r} alone{advice}."
            )

    def __str__(self) -> str:
        return str(self.source) if self.target is None else f"{self.source} and {self.target}"

    @property
    def files(self) -> dict[str, Path]:
        """The paths, by the names of the arguments."""
        files = {"source": Path(self.source)}
        if self.target is not None:
            files["target"] = Path(self.target)
        return files

    def rows(self) -> Iterator[NumberedTexts]:
        if self.target is None:
            yield from read_columns(Path(self.source), self.columns)
            return
        source, target = self.files.values()
        check_plain_text("source_file", source)  # the names of the arguments of commands
        check_plain_text("target_file", target)
        with open_binary(source) as sources, open_binary(target) as targets:
            yield from aligned_rows([(source, sources), (target, targets)])

    def fingerprint(self) -> str:
        """The digests of the files, which are read once per object, and the keys that select columns of them.

        Raises:
            ValueError: a side is standard input or another pipe.
        """
        return self._digests

    @cached_property
    def _digests(self) -> str:
        self.require_files()
        keys = [] if self.target else [self.source_key, self.target_key, *self.languages.codes]
        return " ".join([*map(file_digest, self.files.values()), *keys])


@dataclass(frozen=True)
class DatasetText(Corpus):
    """Parallel text in a dataset of the `datasets` library.

    Args:
        dataset: a memory-mapped or streaming dataset.
        source_key: the column of the sources, or their language code in a `translation` column.
        target_key: the same for the targets.
        name: name of the corpus in reports and error messages.
        version: identifies the contents of a streaming dataset, if they are known; see `load_split`.
        languages, weight: see `Corpus`.

    Raises:
        ValueError: the dataset does not have these columns.
    """

    dataset: "Dataset | IterableDataset"
    name: str = "the dataset"
    version: str = ""

    def __post_init__(self) -> None:
        names = self.dataset.column_names
        if names and TRANSLATION_COLUMN not in names:  # a stream may have no names
            self.columns.require_among(self.name, names)

    def __str__(self) -> str:
        return self.name

    @property
    def is_streamed(self) -> bool:
        """Whether the dataset is read while it is downloaded."""
        return not hasattr(self.dataset, "__len__")

    def rows(self) -> Iterator[NumberedTexts]:
        rows = ((number, row, None) for number, row in enumerate(self.dataset, start=1))
        return texts_of(self.name, rows, self.columns)

    def fingerprint(self) -> str:
        """The fingerprint that `datasets` computes; name and version for a streaming dataset, which has none."""
        return f"{self.name}{self.version}" if self.is_streamed else str(self.dataset._fingerprint)


def load_split(name: str, config_name: str | None, **options: Any) -> "tuple[Dataset | IterableDataset, str]":
    """Load a split of a dataset, and identify the data files if it is a local folder.

    If the `README.md` of a folder lists configurations, the cache key of `datasets` does not depend on the files.
    Changed files, and other folders with the same name, would give the data of an earlier call. All options of the
    configuration are part of the key, so this function passes the files as its description.

    Args:
        name: name or folder of the dataset.
        config_name: name of the configuration.
        **options: options of `datasets.load_dataset`.

    Returns:
        The dataset, and the paths and modification times of the data files of a local folder, `""` for others.
    """
    from datasets import load_dataset, load_dataset_builder
    from datasets.exceptions import DatasetGenerationError

    def load() -> "Dataset | IterableDataset":
        try:
            return load_dataset(name, config_name, **options)
        except DatasetGenerationError as error:
            raise error.__cause__ or error from None  # it names neither the reason nor the line

    if not Path(name).is_dir():
        return load(), ""
    data_files = load_dataset_builder(name, config_name).config.data_files or {}
    version = repr([(str(split), list(paths), paths.origin_metadata) for split, paths in data_files.items()])
    if (Path(name) / "README.md").is_file():
        options["description"] = version
    return load(), version


def is_pair(value: Any) -> bool:
    """Whether a value has two items, and is no text or dictionary."""
    return is_iterable_of_texts(value) and len(value) == 2


def parse_pair(number: int, source: str, target: str, languages: Languages = NO_LANGUAGES) -> Line:
    """A pair without line breaks at the ends of its texts, or an invalid line."""
    source = source.rstrip("\r\n")
    target = target.rstrip("\r\n")
    if unicode_error(source) or unicode_error(target):
        return invalid_line(number, NOT_UTF8, source, target)
    if "\0" in source or "\0" in target:  # possible in JSON and Parquet; a text file with NUL is rejected as a whole
        return invalid_line(number, NUL, source, target)
    if is_blank(source) or is_blank(target):
        return invalid_line(number, EMPTY_SIDE, source, target)
    return ParallelLine(number, source, target, languages)


def invalid_line(number: int, reason: str, *texts: str) -> InvalidLine:
    """An invalid line with the beginnings of its texts."""
    beginnings = (text.rstrip("\r\n")[:EXAMPLE_CHARACTERS] for text in texts)
    return InvalidLine(number, reason, *(SURROGATE.sub("\ufffd", text) for text in beginnings))


def parallel_lines(corpora: Iterable[Corpus]) -> Iterator[ParallelLine]:
    """The lines of several corpora that are valid."""
    return (line for corpus in corpora for line in corpus.lines() if isinstance(line, ParallelLine))


def pairs_of(corpora: Iterable[Corpus]) -> Iterator[Pair]:
    """The texts of `parallel_lines`."""
    return ((line.source, line.target) for line in parallel_lines(corpora))


def distinct_languages(corpora: Iterable[Corpus]) -> list[str]:
    """The codes of all languages of corpora, in the order of their first use."""
    return list(dict.fromkeys(code for corpus in corpora for code in corpus.languages.codes))
