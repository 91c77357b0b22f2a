"""Parallel text, from files to rows of token ids: checked line by line, memory-mapped, tokenised by several processes.

A corpus is read as a stream and kept in Arrow files on the disk, so memory does not grow with it.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

# A line's number, and its two sides or what is wrong with it.
Line = tuple[int, str, str] | tuple[int, str]
SHOWN = 10


@dataclass
class Report:
    """What is wrong with a corpus: how many lines of each kind, and the numbers of the first of them."""

    name: str
    lines: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, list[int]] = field(default_factory=dict)

    def add(self, kind: str, line: int) -> None:
        """Note one more broken line, counted from 1."""
        self.counts[kind] = self.counts.get(kind, 0) + 1
        numbers = self.first.setdefault(kind, [])
        if len(numbers) < SHOWN:
            numbers.append(line)

    @property
    def broken(self) -> int:
        """How many lines are broken."""
        return sum(self.counts.values())

    def __str__(self) -> str:
        if not self.broken:
            return f"{self.name}: {self.lines:,} lines, none broken"
        kinds = [
            f"{count:,} {kind} (line {', '.join(map(str, self.first[kind]))}{', …' if count > SHOWN else ''})"
            for kind, count in self.counts.items()
        ]
        return f"{self.name}: {self.broken:,} of {self.lines:,} lines are broken: {'; '.join(kinds)}"


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

    def check(self) -> Report:
        """Read everything once and report what is broken."""
        report = Report(str(self))
        for line in self.lines():
            report.lines += 1
            if len(line) == 2:
                report.add(line[1], line[0])
        return report


def load_pairs(
    text: ParallelText, on_broken: str = "refuse", cache_dir: str | Path | None = None
) -> tuple[Dataset, Report]:
    """A corpus as a memory-mapped dataset with the columns `line`, `source` and `target`, and what is wrong with it.

    Args:
        text: where the corpus is.
        on_broken: `"refuse"` a corpus with broken lines, or `"drop"` them.
        cache_dir: where the Arrow file goes; the library's cache when `None`.

    Raises:
        ValueError: `on_broken` is neither, lines are broken and refused, or none are left.
    """
    if on_broken not in ("refuse", "drop"):
        raise ValueError(f"on_broken must be 'refuse' or 'drop', got {on_broken!r}.")
    report = text.check()
    _refuse_or_drop(report, on_broken)
    if report.lines == report.broken:
        raise ValueError(f"{report}; there is nothing to train on.")
    # The files' sizes and times are an argument so that the cache knows a corpus that has changed. As text, because the
    # library shares a list out and calls the generator for each part.
    files = [Path(path) for path in (text.source, text.target) if path is not None]
    stamps = str([(path.stat().st_size, path.stat().st_mtime_ns) for path in files])
    cache = None if cache_dir is None else str(cache_dir)
    dataset = Dataset.from_generator(_good_rows, gen_kwargs={"text": text, "stamps": stamps}, cache_dir=cache)
    return dataset, report


def tokenize_pairs(
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    on_broken: str = "drop",
    num_proc: int | None = None,
    name: str = "pairs",
) -> tuple[Dataset, Report]:
    """Token ids for training: `input_ids`, `attention_mask`, `labels`, `source_length` and `target_length`.

    Args:
        pairs: rows of `line`, `source` and `target`.
        tokenizer: ends every text with its end token.
        max_source_length: tokens of the longest source to keep, its end included; any when `None`.
        max_target_length: the same for targets.
        on_broken: `"refuse"` a corpus with longer pairs, or `"drop"` them.
        num_proc: processes to tokenise with.
        name: what the report calls the corpus.

    Raises:
        ValueError: pairs are too long and refused, or none are left.
    """
    tokens = pairs.map(
        _tokenize,
        batched=True,
        fn_kwargs={"tokenizer": tokenizer},
        remove_columns=["source", "target"],
        num_proc=num_proc,
        desc="tokenising",
    )
    report = Report(name, lines=len(tokens))
    lengths = np.stack([np.asarray(tokens["source_length"]), np.asarray(tokens["target_length"])], axis=1)
    limits = [np.inf if limit is None else limit for limit in (max_source_length, max_target_length)]
    over_long = (lengths > limits).any(axis=1)
    for index in np.flatnonzero(over_long).tolist():
        report.add("over-long", tokens[index]["line"])
    _refuse_or_drop(report, on_broken)
    if over_long.all():
        raise ValueError(f"{report}; there is nothing to train on.")
    return (tokens.select(np.flatnonzero(~over_long)) if report.broken else tokens), report


def _good_rows(text: ParallelText, stamps: str) -> Iterator[dict[str, Any]]:  # noqa: ARG001 (for the cache's key)
    for line in text.lines():
        if len(line) == 3:
            yield {"line": line[0], "source": line[1], "target": line[2]}


def _tokenize(rows: dict[str, list], tokenizer: PreTrainedTokenizerBase) -> dict[str, list]:
    encoded = tokenizer(rows["source"], text_target=rows["target"])
    return {
        "input_ids": encoded["input_ids"],
        "attention_mask": encoded["attention_mask"],
        "labels": encoded["labels"],
        "source_length": [len(ids) for ids in encoded["input_ids"]],
        "target_length": [len(ids) for ids in encoded["labels"]],
    }


def _refuse_or_drop(report: Report, on_broken: str) -> None:
    if report.broken and on_broken == "refuse":
        raise ValueError(f"{report}. Mend them, or drop them with on_broken='drop'.")


def _aligned_lines(source: Path, target: Path) -> Iterator[Line]:
    with source.open("rb") as sources, target.open("rb") as targets:
        for number, sides in enumerate(zip_longest(sources, targets), start=1):
            if None in sides:
                yield number, "without a partner"
            else:
                yield _pair(number, sides)


def _parsed_lines(path: Path, split: Callable[[bytes], tuple[bytes, bytes] | None]) -> Iterator[Line]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            sides = split(line)
            yield (number, "not of two sides") if sides is None else _pair(number, sides)


def _split_tabs(line: bytes) -> tuple[bytes, bytes] | None:
    sides = line.rstrip(b"\r\n").split(b"\t")
    return (sides[0], sides[1]) if len(sides) == 2 else None


def _split_json(line: bytes, keys: tuple[str, str]) -> tuple[bytes, bytes] | None:
    try:
        row = json.loads(line)
        sides = tuple(row[key].encode("utf-8", "surrogatepass") for key in keys)
    except (ValueError, KeyError, TypeError, AttributeError):  # not JSON, no such key, or no text under it
        return None
    return sides[0], sides[1]


def _pair(number: int, sides: tuple[bytes, bytes]) -> Line:
    try:
        source, target = (side.rstrip(b"\r\n").decode("utf-8") for side in sides)
    except UnicodeDecodeError:
        return number, "not UTF-8"
    if not source.strip() or not target.strip():
        return number, "with an empty side"
    return number, source, target
