"""The sets of a run by name: `"train"`, and one or several validation and test sets, such as `"test en-de"`."""

from typing import Any

import numpy as np
from datasets import Dataset

from ..data.mixing import CorpusSpec, set_names
from .arguments import DataArguments
from .preparation import TokenizedSet


def sets_of(data: DataArguments) -> dict[str, list[CorpusSpec]]:
    """The corpora by name of the set. Training corpora are one set, validation and test corpora one set each."""
    sets = {"train": data.corpora("train")}
    for split in ("validation", "test"):
        corpora = data.corpora(split)
        sets |= {name: [corpus] for name, corpus in zip(set_names(split, corpora), corpora, strict=True)}
    return sets


def validation_sets(sets: dict[str, TokenizedSet]) -> Dataset | dict[str, Dataset] | None:
    """The validation set; if there are several, by the part of their names after `"validation "`."""
    if "validation" in sets:
        return sets["validation"].tokens
    prefix = "validation "
    return {name.removeprefix(prefix): sets[name].tokens for name in sets if name.startswith(prefix)} or None


def with_means(scores: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Add the mean scores of several validation sets and of several test sets, such as `"test mean"`."""
    means = {}
    for split in ("validation", "test"):
        by_set = [metrics for name, metrics in scores.items() if name.startswith(f"{split} ")]
        if len(by_set) > 1:
            means[f"{split} mean"] = {
                metric: {
                    "score": float(np.mean([metrics[metric]["score"] for metrics in by_set])),
                    "name": values["name"],
                    "signature": values["signature"],
                }
                for metric, values in by_set[0].items()
            }
    return scores | means
