"""Tokenization of parallel text by several processes, and the sample that a vocabulary is trained on."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from filelock import FileLock
from transformers import BatchEncoding, PreTrainedTokenizerBase

from ..inputs_random_transformer import LanguageTags, encode_texts
from .sources import Corpus, ParallelLine
from .validation import LANGUAGE_COLUMNS, ValidationReport

if TYPE_CHECKING:
    from datasets import Dataset  # slow to import

TOO_LONG = "longer than the maximum length"
RATIO = "with a length ratio above the maximum"
WORDS, LENGTHS = ("source_words", "target_words"), ("source_length", "target_length")
VOCABULARY_PAIRS = 1_000_000  # the most pairs to train a vocabulary on


@dataclass(frozen=True)
class LengthLimits:
    """The maximum lengths of training pairs, in tokens.

    Args:
        source: the maximum length of a source, including the end token; `None` for no limit.
        target: the same for targets.
        ratio: the maximum ratio of the longer side of a pair to the shorter one, without the end token; `None` for no
            limit.
    """

    source: int | None = None
    target: int | None = None
    ratio: float | None = None

    def within(self, positions: int | None) -> "LengthLimits":
        """The limits for a model with this number of learned positions; `None` for any number."""
        if positions is None:
            return self
        return replace(
            self, source=min(self.source or positions, positions), target=min(self.target or positions, positions)
        )

    def exceeded(self, lengths: np.ndarray) -> dict[str, np.ndarray]:
        """The pairs to skip by reason, `[pairs]`, from the lengths of source and target, `[pairs, 2]`."""
        limits = [np.inf if limit is None else limit for limit in (self.source, self.target)]
        too_long = (lengths > limits).any(axis=1)
        tokens = np.maximum(lengths - 1, 1)
        unequal = tokens.max(axis=1) > tokens.min(axis=1) * (self.ratio or np.inf)
        return {TOO_LONG: too_long, RATIO: unequal & ~too_long}


def tokenize_pairs(
    pairs: "Dataset",
    tokenizer: PreTrainedTokenizerBase,
    limits: LengthLimits = LengthLimits(),
    *,
    num_proc: int | None = None,
    name: str = "pairs",
    words: bool = False,
) -> "tuple[Dataset, ValidationReport]":
    """Tokenize pairs into the columns `input_ids`, `attention_mask`, `labels`, `source_length` and `target_length`.

    Args:
        pairs: a dataset with the columns `line`, `source` and `target`, and with `source_lang` and `target_lang` for a
            tokenizer with language tags.
        tokenizer: a tokenizer that appends its end token to every text.
        limits: the maximum lengths; longer pairs are skipped.
        num_proc: number of processes.
        name: name of the dataset in the report.
        words: add the columns `source_words` and `target_words`, the index of each token's word (-1 for special
            tokens), which BPE-dropout requires.

    Raises:
        ValueError: no pair remains.
    """
    tokenizer = copy.deepcopy(tokenizer)
    # Without the folder that it was loaded from, which would be part of the key of the cache.
    tokenizer.name_or_path = ""
    tokenizer.init_kwargs.pop("name_or_path", None)
    # One process at a time tokenizes a dataset that is stored in files.
    files = pairs.cache_files
    with FileLock(Path(files[0]["filename"]).parent / "tokenize.lock") if files else nullcontext():
        tokens = pairs.map(
            tokenize_batch,
            batched=True,
            fn_kwargs={"tokenizer": tokenizer, "words": words},
            remove_columns=[name for name in ("source", "target", *LANGUAGE_COLUMNS) if name in pairs.column_names],
            num_proc=num_proc,
            desc="tokenizing",
        )
    report = ValidationReport(name, lines=len(tokens))
    exceeded = limits.exceeded(lengths_of(tokens))
    for reason, rows in exceeded.items():
        for number in _column(tokens, "line")[rows].tolist():
            report.add(reason, number)
    report.check("skip")
    return (tokens.select(np.flatnonzero(~np.any([*exceeded.values()], axis=0))) if report.invalid else tokens), report


def tokenize_batch(rows: dict[str, list], tokenizer: PreTrainedTokenizerBase, words: bool = False) -> dict[str, list]:
    """Convert columns of `source` and `target` texts to columns of token ids and lengths, and of words if requested.

    With the columns `source_lang` and `target_lang`, a tokenizer with `src_lang` and `tgt_lang` adds language tags.
    """
    size = len(rows["source"])
    languages = [*zip(*(rows.get(name) or [None] * size for name in LANGUAGE_COLUMNS), strict=True)]
    encoded: dict[str, list] = {}
    for pair in dict.fromkeys(languages):  # rows with the same languages are tokenized together
        indices = [i for i, other in enumerate(languages) if other == pair]
        with LanguageTags(*pair).set(tokenizer):
            part = _encode({side: [rows[side][i] for i in indices] for side in ("source", "target")}, tokenizer, words)
        for name, values in part.items():
            column = encoded.setdefault(name, [None] * size)
            for i, value in zip(indices, values, strict=True):
                column[i] = value
    lengths = {name: [*map(len, encoded[ids])] for name, ids in zip(LENGTHS, ("input_ids", "labels"), strict=True)}
    return encoded | lengths


def _encode(rows: dict[str, list], tokenizer: PreTrainedTokenizerBase, words: bool) -> dict[str, list]:
    source, target = encode_texts(tokenizer, rows["source"]), encode_texts(tokenizer, text_target=rows["target"])
    encoded = {name: source[name] for name in ("input_ids", "attention_mask")} | {"labels": target["input_ids"]}
    return encoded | dict(zip(WORDS, map(_word_ids, (source, target)), strict=True)) if words else encoded


def _word_ids(encoded: BatchEncoding) -> list[list[int]]:
    """The index of each token's word in each text; -1 for tokens that were added to the text."""
    rows = (encoded.word_ids(row) for row in range(len(encoded["input_ids"])))
    return [[-1 if word is None else word for word in row] for row in rows]


def lengths_of(tokens: "Dataset | Sequence[dict[str, Any]]") -> np.ndarray:
    """Lengths of each source and target in tokens, `[pairs, 2]`; counted if the dataset has no columns for them.

    Raises:
        ValueError: the dataset is a stream.
    """
    if not hasattr(tokens, "__len__"):
        raise ValueError(f"the dataset must have a length, got {type(tokens).__name__}.")
    if {*LENGTHS} <= {*(getattr(tokens, "column_names", None) or ())}:
        return np.stack([_column(tokens, name) for name in LENGTHS], axis=1)
    return np.array([(len(row["input_ids"]), len(row.get("labels", ()))) for row in tokens]).reshape(-1, 2)


def vocabulary_sample(corpus: Corpus, lines: int | None) -> Iterator[str]:
    """Sources and targets to train a vocabulary on, from at most `VOCABULARY_PAIRS` lines.

    Args:
        corpus: a corpus, which is read once.
        lines: number of lines of the corpus, for a sample at equal distances; `None` if it is unknown, for a sample
            of the first lines.
    """
    step = 1 if lines is None else -(-lines // VOCABULARY_PAIRS)
    for line in islice(corpus.lines(), 0, VOCABULARY_PAIRS * step, step):
        if isinstance(line, ParallelLine):
            yield from (line.source, line.target)


def _column(rows: "Dataset", name: str) -> np.ndarray:
    """A column of numbers, faster than access through `datasets`, which takes 8 s for a million selected rows."""
    column = rows.data.column(name).to_numpy()
    return column if rows._indices is None else column[rows._indices.column(0).to_numpy()]
