"""The metrics as the `compute_metrics` of transformers' Seq2SeqTrainer."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from transformers import EvalPrediction, PreTrainedTokenizerBase

from .scoring import divide_options, score


def translation_metrics(
    tokenizer: PreTrainedTokenizerBase, metrics: str | Sequence[str] = ("bleu", "chrf"), **options: Any
) -> Callable[[EvalPrediction], dict[str, float]]:
    """What to give `Seq2SeqTrainer(compute_metrics=…)` with `predict_with_generate=True`.

    The references are the labels' own text: labels that were cut to a maximal length, or a tokenizer that normalizes,
    give other numbers than `score` does on the untouched texts. Publish those of `score`.

    With several processes Seq2SeqTrainer fills up the last batch with the first rows of the data set once more, and
    they count. A subclass whose `evaluation_loop` begins with
    `self.gather_function = self.accelerator.gather_for_metrics` leaves them out.

    Args:
        tokenizer: the one that made the labels.
        metrics: `"bleu"`, `"chrf"` (chrF++) or both.
        **options: options of the metrics, as for `score`.

    Returns:
        A function of transformers' `EvalPrediction`, with token ids `[rows, length]` as predictions and labels, any
        negative id being padding. It returns the score of each metric by its name, 0 to 100, and `generated_length`,
        the mean number of generated tokens that are not special; all are floats. It can be pickled.

        The function raises a `ValueError` where the predictions are no token ids.

    Raises:
        ValueError: an argument is not allowed; the message names it.
        ImportError: the extra `train` is not installed.
    """
    names = list(divide_options(metrics, options))  # a wrong option is told now, not after hours of training
    return partial(_compute_metrics, tokenizer, names, options)


def _compute_metrics(
    tokenizer: PreTrainedTokenizerBase,
    metrics: Sequence[str],
    options: dict[str, Any],
    prediction: EvalPrediction,
) -> dict[str, float]:
    generated = _token_rows("predictions", prediction.predictions)
    scores = score(
        _decode(tokenizer, generated),
        _decode(tokenizer, _token_rows("label_ids", prediction.label_ids)),
        metrics,
        **options,
    )
    special = set(tokenizer.all_special_ids)
    lengths = [sum(token not in special for token in row) for row in generated]
    return {name: result["score"] for name, result in scores.items()} | {"generated_length": float(np.mean(lengths))}


def _token_rows(name: str, ids: Any) -> list[list[int]]:
    """The ids `[rows, length]` as lists, without Trainer's padding of -100; the first of several arrays."""
    rows = [np.asarray(row) for row in _first(name, ids)]
    if any(row.ndim != 1 or (row.size and row.dtype.kind not in "iu") for row in rows):
        raise ValueError(
            f"{name} must be token ids [rows, length], got an array of {rows[0].ndim + 1} dimensions of "
            f"{rows[0].dtype}; Seq2SeqTrainingArguments needs predict_with_generate=True."
        )
    return [row[row >= 0].astype(int).tolist() for row in rows]


def _first(name: str, ids: Any) -> Any:
    ids = ids[0] if isinstance(ids, tuple) else ids
    if ids is None:
        raise ValueError(f"{name} must be token ids [rows, length], got None.")
    return ids


def _decode(tokenizer: PreTrainedTokenizerBase, rows: list[list[int]]) -> list[str]:
    """The texts as the tokenizer would give them back, every space where it was."""
    return tokenizer.batch_decode(rows, skip_special_tokens=True, clean_up_tokenization_spaces=False)
