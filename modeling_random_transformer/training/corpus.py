"""Parallel text as rows of token ids: checked line by line, memory-mapped, tokenised by several processes.

A corpus is read as a stream and kept in Arrow files on the disk, so memory does not grow with it.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from .report import Report
from .sources import Corpus


def load_pairs(text: Corpus, on_broken: str = "refuse", cache_dir: str | Path | None = None) -> tuple[Dataset, Report]:
    """A corpus as a memory-mapped dataset with the columns `line`, `source` and `target`, and what is wrong with it.

    Args:
        text: where the corpus is.
        on_broken: `"refuse"` a corpus with broken lines, or `"drop"` them.
        cache_dir: where the Arrow file goes; the library's cache when `None`.

    Raises:
        ValueError: `on_broken` is neither, lines are broken and refused, or none are left.
    """
    check_choice(on_broken)
    report = text.check()
    refuse_or_drop(report, on_broken)
    if report.lines == report.broken:
        raise ValueError(f"{report}; there is nothing to train on.")
    cache = None if cache_dir is None else str(cache_dir)
    dataset = Dataset.from_generator(_good_rows, gen_kwargs={"text": text, "stamp": text.stamp()}, cache_dir=cache)
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
        tokenize,
        batched=True,
        fn_kwargs={"tokenizer": tokenizer},
        remove_columns=["source", "target"],
        num_proc=num_proc,
        desc="tokenising",
    )
    report = Report(name, lines=len(tokens))
    limits = [np.inf if limit is None else limit for limit in (max_source_length, max_target_length)]
    over_long = (lengths_of(tokens) > limits).any(axis=1)
    for index in np.flatnonzero(over_long).tolist():
        report.add("over-long", tokens[index]["line"])
    refuse_or_drop(report, on_broken)
    if over_long.all():
        raise ValueError(f"{report}; there is nothing to train on.")
    return (tokens.select(np.flatnonzero(~over_long)) if report.broken else tokens), report


def lengths_of(tokens: Dataset) -> np.ndarray:
    """Tokens of each pair's source and target, `[pairs, 2]`."""
    columns = tokens.select_columns(["source_length", "target_length"]).with_format("numpy")
    return np.stack([columns["source_length"][:], columns["target_length"][:]], axis=1)


def _good_rows(text: Corpus, stamp: str) -> Iterator[dict[str, Any]]:  # noqa: ARG001 (for the cache's key)
    for line in text.lines():
        if len(line) == 3:
            yield {"line": line[0], "source": line[1], "target": line[2]}


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


def check_choice(on_broken: str) -> None:
    """Refuse what is not a way to treat broken lines."""
    if on_broken not in ("refuse", "drop"):
        raise ValueError(f"on_broken must be 'refuse' or 'drop', got {on_broken!r}.")


def refuse_or_drop(report: Report, on_broken: str) -> None:
    """Refuse a corpus with broken lines, if that is what the user chose."""
    if report.broken and on_broken == "refuse":
        raise ValueError(f"{report}. Mend them, or drop them with on_broken='drop'.")
