"""Parallel text as rows of token ids: checked line by line, memory-mapped, tokenized by several processes.

A corpus is read as a stream and kept in Arrow files on the disk, so memory does not grow with it. Of several processes
on a machine one reads and tokenizes; the others wait for its lock on the cache, without a limit of time, and map the
files that it wrote.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import Dataset, Features, Value
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from .report import Report
from .sources import WITHOUT_PARTNER, Corpus


def load_pairs(text: Corpus, on_invalid: str = "error", cache_dir: str | Path | None = None) -> tuple[Dataset, Report]:
    """A corpus as a memory-mapped dataset with the columns `line`, `source` and `target`, and what is wrong with it.

    Args:
        text: where the corpus is.
        on_invalid: `"error"` a corpus with broken lines, or `"skip"` them.
        cache_dir: where the Arrow file goes; the library's cache when `None`.

    Raises:
        ValueError: `on_invalid` is neither, the files have different numbers of lines, lines are broken and refused, or
            none are left.
    """
    check_choice(on_invalid)
    cache = None if cache_dir is None else str(cache_dir)
    rows = Dataset.from_generator(
        _all_rows,
        gen_kwargs={"text": text, "stamp": text.stamp()},
        features=Features({"line": Value("int64"), **dict.fromkeys(("source", "target", "problem"), Value("string"))}),
        cache_dir=cache,
    )
    broken = pc.not_equal(rows.data.column("problem"), "").to_numpy()
    report = Report(str(text), lines=len(rows))
    for row in rows.select(np.flatnonzero(broken)):
        report.add(row["problem"], row["line"])
    refuse_or_drop(report, on_invalid)
    if report.lines == report.broken:
        raise ValueError(f"{report}; there is nothing to train on.")
    pairs = rows.remove_columns("problem")
    return (pairs.select(np.flatnonzero(~broken)) if report.broken else pairs), report


def tokenize_pairs(
    pairs: Dataset,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_source_length: int | None = None,
    max_target_length: int | None = None,
    on_invalid: str = "skip",
    num_proc: int | None = None,
    name: str = "pairs",
) -> tuple[Dataset, Report]:
    """Token ids for training: `input_ids`, `attention_mask`, `labels`, `source_length` and `target_length`.

    Args:
        pairs: rows of `line`, `source` and `target`.
        tokenizer: ends every text with its end token.
        max_source_length: tokens of the longest source to keep, its end included; any when `None`.
        max_target_length: the same for targets.
        on_invalid: `"error"` a corpus with longer pairs, or `"skip"` them.
        num_proc: processes to tokenise with.
        name: what the report calls the corpus.

    Raises:
        ValueError: pairs are too long and refused, or none are left.
    """
    with _locked_cache(pairs):
        tokens = pairs.map(
            tokenize,
            batched=True,
            fn_kwargs={"tokenizer": tokenizer},
            remove_columns=["source", "target"],
            num_proc=num_proc,
            desc="tokenizing",
        )
    report = Report(name, lines=len(tokens))
    limits = [np.inf if limit is None else limit for limit in (max_source_length, max_target_length)]
    over_long = (lengths_of(tokens) > limits).any(axis=1)
    for line in _column(tokens, "line")[over_long].tolist():
        report.add("over-long", line)
    refuse_or_drop(report, on_invalid)
    if over_long.all():
        raise ValueError(f"{report}; there is nothing to train on.")
    return (tokens.select(np.flatnonzero(~over_long)) if report.broken else tokens), report


def lengths_of(tokens: Dataset | Sequence[dict[str, Any]]) -> np.ndarray:
    """Tokens of each pair's source and target, `[pairs, 2]`; counted where the data set has no columns of them.

    Raises:
        ValueError: the data set is a stream.
    """
    names = ["source_length", "target_length"]
    if isinstance(tokens, Dataset) and set(names) <= set(tokens.column_names):
        return np.stack([_column(tokens, name) for name in names], axis=1)
    if not hasattr(tokens, "__len__"):
        raise ValueError(f"the data set must have a length, got {type(tokens).__name__}.")
    return np.array([(len(row["input_ids"]), len(row.get("labels", ()))) for row in tokens]).reshape(-1, 2)


def _column(rows: Dataset, name: str) -> np.ndarray:
    """A column of numbers. The library looks up selected rows one by one, which takes 8 s for a million."""
    column = rows.data.column(name).to_numpy()
    return column if rows._indices is None else column[rows._indices.column(0).to_numpy()]


@contextmanager
def _locked_cache(pairs: Dataset) -> Iterator[None]:
    """Only one process at a time, if the data set is kept in a file."""
    if not pairs.cache_files:
        yield
        return
    with FileLock(Path(pairs.cache_files[0]["filename"]).parent / "tokenize.lock"):
        yield


def _all_rows(text: Corpus, stamp: str) -> Iterator[dict[str, Any]]:  # noqa: ARG001 (for the cache's key)
    for number, *sides in text.lines():
        source, target = sides if len(sides) == 2 else ("", "")
        yield {
            "line": number,
            "source": source,
            "target": target,
            "problem": sides[0] if len(sides) == 1 else "",
        }


def tokenize(rows: dict[str, list], tokenizer: PreTrainedTokenizerBase) -> dict[str, list]:
    """Columns of `source` and `target` texts as columns of token ids and their numbers."""
    encoded = tokenizer(rows["source"], text_target=rows["target"])
    return {
        "input_ids": encoded["input_ids"],
        "attention_mask": encoded["attention_mask"],
        "labels": encoded["labels"],
        "source_length": [len(ids) for ids in encoded["input_ids"]],
        "target_length": [len(ids) for ids in encoded["labels"]],
    }


def check_choice(on_invalid: str) -> None:
    """Refuse what is not a way to treat broken lines."""
    if on_invalid not in ("error", "skip"):
        raise ValueError(f"on_invalid must be 'error' or 'skip', got {on_invalid!r}.")


def refuse_or_drop(report: Report, on_invalid: str) -> None:
    """Raise if a corpus has broken lines and `on_invalid` is `"error"`, or if its lines cannot be paired at all.

    Raises:
        ValueError: lines are broken and refused, or the two files have different numbers of lines.
    """
    if (longer := report.counts.get(WITHOUT_PARTNER)) is not None:
        raise ValueError(
            f"{report.name} must have the same number of lines, got {report.lines:,} and {report.lines - longer:,}."
        )
    if report.broken and on_invalid == "error":
        raise ValueError(f"{report}. Mend them, or drop them with on_invalid='skip'.")
