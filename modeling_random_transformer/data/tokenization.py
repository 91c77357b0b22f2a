"""Tokenization of parallel text by several processes, and the sample that a vocabulary is trained on."""

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from ..base.distributed import in_turn
from ..inputs_random_transformer import Languages, encode_texts
from .lengths import NO_LIMITS, TOO_LONG, UNEQUAL, LengthLimits
from .sources import NO_LANGUAGES, SIDES, Corpus, ParallelLine
from .validation import ValidationReport

if TYPE_CHECKING:
    from datasets import Dataset  # slow to import

# The columns of source and target in a dataset of tokens.
ID_COLUMNS = ("input_ids", "labels")
WORD_COLUMNS = ("source_words", "target_words")
LENGTH_COLUMNS = ("source_length", "target_length")
VOCABULARY_PAIRS = 1_000_000  # the most pairs to train a vocabulary on


def tokenize_pairs(
    pairs: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    limits: LengthLimits = NO_LIMITS,
    *,
    languages: Languages = NO_LANGUAGES,
    num_proc: int | None = None,
    name: str = "pairs",
    with_words: bool = False,
) -> "tuple[Dataset, ValidationReport]":
    """Tokenize pairs into the columns `input_ids`, `labels`, `source_length` and `target_length`.

    Args:
        pairs: a dataset with the columns `line`, `source` and `target`.
        tokenizer: a tokenizer that appends its end token to every text.
        limits: the maximum lengths; longer pairs are skipped.
        languages: the languages of the pairs, for a tokenizer with language tags.
        num_proc: number of processes.
        name: name of the dataset in the report.
        with_words: keep the columns `source` and `target`, and add `source_words` and `target_words`, the index of each
            token's word (-1 for special tokens), which BPE-dropout and augmentation require.

    Raises:
        ValueError: no pair remains.
    """
    tokenizer = copy.deepcopy(tokenizer)
    # The folder from which the tokenizer was loaded is removed, since it would be part of the cache key.
    tokenizer.name_or_path = ""
    tokenizer.init_kwargs.pop("name_or_path", None)
    # One process at a time tokenizes a dataset that is stored in files.
    files = pairs.cache_files
    lock: AbstractContextManager = nullcontext()
    if files:
        lock = in_turn(Path(files[0]["filename"]).with_name("tokenize.lock"))
    with lock:
        tokens = pairs.map(
            tokenize_batch,
            batched=True,
            fn_kwargs={"tokenizer": tokenizer, "languages": languages, "with_words": with_words},
            remove_columns=None if with_words else [*SIDES],
            num_proc=num_proc,
            desc="tokenizing",
        )
    report = ValidationReport(name, lines=len(tokens))
    skipped = skipped_pairs(limits, lengths_of(tokens))
    for reason, is_skipped in skipped.items():
        for number in number_column(tokens, "line")[is_skipped].tolist():
            report.add(reason, number)
    report.check("skip")
    if report.invalid:
        tokens = tokens.select(np.flatnonzero(~(skipped[TOO_LONG] | skipped[UNEQUAL])))
    return tokens, report


def skipped_pairs(limits: LengthLimits, lengths: np.ndarray) -> dict[str, np.ndarray]:
    """For each reason, whether pairs are skipped, `[pairs]`, from the lengths in tokens, `[pairs, 2]`.

    The end token does not count for the ratio of the lengths.
    """
    too_long = limits.are_exceeded(*lengths.T)
    unequal = limits.is_unequal(*np.maximum(lengths - 1, 1).T)
    return {TOO_LONG: too_long, UNEQUAL: unequal & ~too_long}


def tokenize_batch(
    rows: dict[str, list], tokenizer: PreTrainedTokenizerBase, languages: Languages, with_words: bool = False
) -> dict[str, list]:
    """Convert columns of texts to columns of token ids and lengths, and with `with_words` also of word indices."""
    codes = languages.arguments
    source = encode_texts(tokenizer, rows["source"], **codes)
    target = encode_texts(tokenizer, text_target=rows["target"], **codes)
    columns = {"input_ids": source["input_ids"], "labels": target["input_ids"]}
    for encoded, words_column, lengths_column in zip((source, target), WORD_COLUMNS, LENGTH_COLUMNS, strict=True):
        ids_of_texts = encoded["input_ids"]
        columns[lengths_column] = [*map(len, ids_of_texts)]
        if with_words:  # -1 for tokens that were added to the text
            words_of_texts = map(encoded.word_ids, range(len(ids_of_texts)))
            columns[words_column] = [[-1 if word is None else word for word in text] for text in words_of_texts]
    return columns


def lengths_of(tokens: "Dataset | Sequence[dict[str, Any]]") -> np.ndarray:
    """Lengths of each source and target in tokens, `[pairs, 2]`; counted if the dataset has no columns for them.

    Raises:
        ValueError: the dataset is a stream, or its rows are not tokenized.
    """
    if not hasattr(tokens, "__len__"):
        raise ValueError(f"the dataset must have a length, got {type(tokens).__name__}.")
    columns = getattr(tokens, "column_names", None) or ()
    if {*LENGTH_COLUMNS} <= {*columns}:
        return np.stack([number_column(tokens, name) for name in LENGTH_COLUMNS], axis=1)
    lengths = []
    for row in tokens:
        if "input_ids" not in row:
            raise ValueError(f"the rows of the dataset must have input_ids and labels, got {', '.join(row)}.")
        lengths.append((len(row["input_ids"]), len(row.get("labels", ()))))
    return np.array(lengths).reshape(-1, 2)


def vocabulary_sample(corpus: Corpus, lines: int | None) -> Iterator[str]:
    """Sources and targets to train a vocabulary on, from at most `VOCABULARY_PAIRS` lines.

    Args:
        corpus: a corpus, which is read once.
        lines: number of lines of the corpus, for a sample at equal distances; `None` if it is unknown, for a sample
            of the first lines.
    """
    step = 1 if lines is None else math.ceil(lines / VOCABULARY_PAIRS)
    for line in islice(corpus.lines(), 0, VOCABULARY_PAIRS * step, step):
        if isinstance(line, ParallelLine):
            yield line.source
            yield line.target


def number_column(rows: "Dataset", name: str) -> np.ndarray:
    """A column of numbers, faster than access through `datasets`, which takes 8 s for a million selected rows."""
    column = rows.data.column(name).to_numpy()
    return column if rows._indices is None else column[rows._indices.column(0).to_numpy()]
