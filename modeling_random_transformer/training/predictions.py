"""Predictions and metrics of evaluation: their order, their language tag, and the means over several sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor
from transformers.trainer_utils import EvalPrediction


def common_tag(labels: Tensor) -> int:
    """The language tag that all labels, `[batch, target_len]`, start with.

    Raises:
        ValueError: labels start with different tags.
    """
    tags = labels[:, 0].unique().tolist()
    if len(tags) != 1:
        raise ValueError(f"eval_dataset must have one target language per set, got a batch of {len(tags)}.")
    return tags[0]


def select_rows(rows: Any, positions: np.ndarray) -> Any:
    """The rows at these positions, of an array or of each array in a tuple."""
    if isinstance(rows, (tuple, list)):
        return type(rows)(select_rows(part, positions) for part in rows)
    return None if rows is None else rows[positions]


def reordered(prediction: EvalPrediction, positions: np.ndarray) -> EvalPrediction:
    """The predictions, labels and inputs at these positions."""
    parts = (select_rows(rows, positions) for rows in (prediction.predictions, prediction.label_ids, prediction.inputs))
    predictions, labels, inputs = parts
    return EvalPrediction(predictions, labels, inputs, prediction.losses)


def with_mean_metrics(by_set: Mapping[str, dict[str, float]], prefix: str) -> dict[str, float]:
    """The metrics of several sets, and their means, named like the metrics of a single set.

    Args:
        by_set: the metrics of each set, whose names begin with the key of the set, such as `"eval_en-de"`.
        prefix: what the names of the means begin with, such as `"eval"`. Times and rates have no means.
    """
    first = next(iter(by_set))
    names = [key.removeprefix(first) for key in by_set[first] if not key.endswith(("time", "_per_second"))]
    means = {
        f"{prefix}{name}": float(np.mean([metrics[f"{key}{name}"] for key, metrics in by_set.items()]))
        for name in names
    }
    return means | {name: value for metrics in by_set.values() for name, value in metrics.items()}
