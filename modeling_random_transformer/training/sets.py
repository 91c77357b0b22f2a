"""The sets of a run by name: `"train"`, and one or several validation and test sets, such as `"test en-de"`."""

from dataclasses import replace
from typing import Any

import numpy as np
from datasets import Dataset

from ..data.mixing import CorpusSpec, set_names
from ..data.sources import ParallelText
from ..utils.distributed import call_on_main_process
from .arguments import DataArguments
from .preparation import TokenizedSet


def sets_of(data: DataArguments) -> dict[str, list[CorpusSpec]]:
    """The corpora by name of the set. Training corpora are one set, validation and test corpora one set each."""
    sets = {"train": data.corpora("train")}
    for split in ("validation", "test"):
        corpora = data.corpora(split)
        sets |= {name: [corpus] for name, corpus in zip(set_names(split, corpora), corpora, strict=True)}
    return sets


def with_digests(sets: dict[str, list[CorpusSpec]]) -> dict[str, list[CorpusSpec]]:
    """The sets with the digests of their files, which one process reads once, for the manifest and for the cache."""
    texts = [corpus.text for corpora in sets.values() for corpus in corpora if isinstance(corpus.text, ParallelText)]
    digests = call_on_main_process(lambda: [text.fingerprint() for text in texts])
    known = {id(text): replace(text, digest=digest) for text, digest in zip(texts, digests, strict=True)}
    return {
        name: [replace(corpus, text=known.get(id(corpus.text), corpus.text)) for corpus in corpora]
        for name, corpora in sets.items()
    }


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
