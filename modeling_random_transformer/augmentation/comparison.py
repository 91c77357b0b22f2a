"""Comparison of a teacher and its student on a test set: scores, speed and size."""

import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..export.compare import folder_size, time_interleaved
from ..inference import translate
from ..inference.evaluation import score
from ..inference.loading import load_models
from ..inputs_random_transformer import LanguageTags
from ..utils.text import markdown_table
from .stages import language_options

ROUNDS, LONG = 3, 60  # measurements of the speed; only one if the translations of all models take this many seconds
HEADER = ("model", "dtype", "BLEU", "chrF++", "sentences/s", "MB")

Model = tuple[str, str, Sequence[Path]]  # name, dtype and folders of a model or an ensemble


@dataclass
class Row:
    """The result of a model in one dtype.

    Attributes:
        model: `"teacher"` or `"student"`.
        dtype: dtype of the weights.
        bleu: BLEU, 0 to 100.
        chrf: chrF++, 0 to 100.
        sentences_per_second: throughput on the test set.
        megabytes: size of the saved weights (10⁶ bytes).
        signature: sacrebleu's signature of BLEU.
    """

    model: str
    dtype: str
    bleu: float
    chrf: float
    sentences_per_second: float
    megabytes: float
    signature: str

    def cells(self) -> tuple[str, ...]:
        """The columns of a table."""
        numbers = f"{self.bleu:.2f}", f"{self.chrf:.2f}", f"{self.sentences_per_second:.1f}", f"{self.megabytes:.1f}"
        return self.model, self.dtype, *numbers


def compare(
    models: Sequence[Model],
    pairs: Sequence[tuple[str, str]],
    languages: LanguageTags,
    device: torch.device,
    options: dict[str, Any],
) -> list[Row]:
    """Translate a test set with saved models or ensembles, in turns, because the load of the machine may change.

    As in the evaluation of the training, sentences of any length are translated; learned positions truncate them.

    Args:
        models: name, dtype and folders of each.
        pairs: the test set.
        languages: its languages, for models with language tags.
        device: where the models run.
        options: the options of `translate`.
    """
    sources, references = map(list, zip(*pairs, strict=True))
    options, calls = {**options, "max_source_tokens": sys.maxsize}, []
    for name, dtype, folders in models:
        model, tokenizer = load_models(folders, dtype, device, argument=name)
        codes = language_options(tokenizer, languages)
        calls.append(partial(translate, sources, model, tokenizer, **options | codes))
    start = time.perf_counter()
    translations = [call() for call in calls]
    times = time_interleaved(calls, ROUNDS if time.perf_counter() - start < LONG else 1)
    rows = []
    for (name, dtype, folders), texts, seconds in zip(models, translations, times, strict=True):
        scores, speed = score(texts, references), len(sources) / statistics.median(seconds)
        bleu, size = scores["bleu"], sum(folder_size(folder, "*.safetensors") for folder in folders)
        rows.append(Row(name, dtype, bleu["score"], scores["chrf"]["score"], speed, size, bleu["signature"]))
    return rows


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    return markdown_table(HEADER, [row.cells() for row in rows])
