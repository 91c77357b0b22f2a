"""Comparison of a teacher and its student on a test set: scores, speed and size in several dtypes."""

import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig

from ..configuration_random_transformer import RandomTransformerConfig
from ..export.compare import folder_size, time_interleaved
from ..inference import translate
from ..inference.evaluation import score
from ..inference.loading import load_models, load_translator, silence_transformers
from ..inputs_random_transformer import LanguageTags
from ..ops_random_transformer import supports_native_matmul
from ..utils import DTYPES
from ..utils.text import markdown_table
from .stages import language_options

ROUNDS, LONG = 3, 60  # measurements of the speed; only one if the translations of all models take this many seconds
HEADER = ("model", "dtype", "BLEU", "chrF++", "sentences/s", "MB")

Models = Mapping[str, Sequence[Path]]  # the folders of models or ensembles, by name


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
    models: Models,
    pairs: Sequence[tuple[str, str]],
    languages: LanguageTags,
    device: torch.device,
    options: dict[str, Any],
) -> list[Row]:
    """Translate a test set with saved models or ensembles in each dtype, in turns, because the load may change.

    As in the evaluation of the training, sentences of any length are translated; learned positions truncate them.

    Args:
        models: the models.
        pairs: the test set.
        languages: its languages, for models with language tags.
        device: where the models run. bfloat16 is omitted on CPUs that emulate it, and int8 for models of others.
        options: the options of `translate`.
    """
    sources, references = map(list, zip(*pairs, strict=True))
    options = {**options, "max_source_tokens": sys.maxsize}
    rows = []
    for dtype in DTYPES:
        if dtype == "bfloat16" and device.type == "cpu" and not supports_native_matmul(torch.bfloat16):
            continue
        names = [name for name, folders in models.items() if dtype != "int8" or all(map(can_quantize, folders))]
        loaded = [load_models(models[name], dtype, device, argument=name) for name in names]
        calls = [
            partial(translate, sources, model, tokenizer, **options | language_options(tokenizer, languages))
            for model, tokenizer in loaded
        ]
        start = time.perf_counter()
        translations = [call() for call in calls]
        times = time_interleaved(calls, ROUNDS if time.perf_counter() - start < LONG else 1)
        for name, texts, seconds in zip(names, translations, times, strict=True):
            scores, speed = score(texts, references), len(sources) / statistics.median(seconds)
            bleu, chrf, size = scores["bleu"], scores["chrf"], saved_size(models[name], dtype)
            rows.append(Row(name, dtype, bleu["score"], chrf["score"], speed, size, bleu["signature"]))
    return sorted(rows, key=lambda row: [*models].index(row.model))


def can_quantize(folder: Path) -> bool:
    """Whether a model can be loaded in int8."""
    return AutoConfig.from_pretrained(folder).model_type == RandomTransformerConfig.model_type


def saved_size(folders: Sequence[Path], dtype: str) -> float:
    """The size of the weights of models when they are saved in this dtype, in megabytes (10⁶ bytes)."""
    with TemporaryDirectory() as temporary, silence_transformers():
        for number, folder in enumerate(folders):
            load_translator(folder, dtype)[0].save_pretrained(Path(temporary) / str(number))
        return folder_size(temporary, "**/*.safetensors")


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    return markdown_table(HEADER, [row.cells() for row in rows])
