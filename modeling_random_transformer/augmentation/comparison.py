"""Comparison of a teacher and its student on a test set: scores, speed and size in several dtypes."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import AutoConfig

from ..configuration_random_transformer import RandomTransformerConfig
from ..data.sources import Languages
from ..export.compare import folder_size, time_interleaved
from ..inference import translate
from ..inference.evaluation import score
from ..inference.loading import load_models, load_translator, silence_transformers
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


@dataclass(frozen=True)
class TestSet:
    """A test set.

    Attributes:
        sources: the texts to translate.
        references: their translations.
        options: the options of `translate`.
        languages: language codes of sources and references, for models with language tags.
    """

    sources: list[str]
    references: list[str]
    options: dict[str, Any]
    languages: Languages | None = None

    def compare(self, models: Models, dtype: str, device: torch.device) -> list[Row]:
        """Translate the test set with several saved models or ensembles, in turns, because the load may change."""
        calls = [self.translation(name, folders, dtype, device) for name, folders in models.items()]
        start = time.perf_counter()
        translations = [call() for call in calls]
        rounds = ROUNDS if time.perf_counter() - start < LONG else 1
        rates = [len(self.sources) / statistics.median(seconds) for seconds in time_interleaved(calls, rounds)]
        rows = []
        for (name, folders), texts, rate in zip(models.items(), translations, rates, strict=True):
            scores, megabytes = score(texts, self.references), sum(saved_size(folder, dtype) for folder in folders)
            bleu, chrf = scores["bleu"], scores["chrf"]
            rows.append(Row(name, dtype, bleu["score"], chrf["score"], rate, megabytes, bleu["signature"]))
        return rows

    def translation(
        self, name: str, folders: Sequence[Path], dtype: str, device: torch.device
    ) -> Callable[[], list[str]]:
        """Load a model; the function that translates the test set with it."""
        model, tokenizer = load_models(folders, dtype, device, argument=name)
        options = {**self.options, **language_options(tokenizer, self.languages)}
        return lambda: translate(self.sources, model, tokenizer, **options)


def saved_size(folder: Path, dtype: str) -> float:
    """The size of a model's weights when they are saved in this dtype, in megabytes (10⁶ bytes)."""
    model, _ = load_translator(folder, dtype)
    with TemporaryDirectory() as temporary, silence_transformers():
        model.save_pretrained(temporary)
        return folder_size(temporary, "*.safetensors")


def models_by_dtype(models: Models, device: torch.device) -> dict[str, Models]:
    """The models that can be compared in each dtype: bfloat16 not on CPUs that emulate it, int8 only this package's."""
    is_emulated = device.type == "cpu" and not supports_native_matmul(torch.bfloat16)
    folders = {folder for several in models.values() for folder in several}
    others = {
        folder
        for folder in folders
        if AutoConfig.from_pretrained(folder).model_type != RandomTransformerConfig.model_type
    }
    dtypes = [dtype for dtype in DTYPES if not (dtype == "bfloat16" and is_emulated)]
    return {
        dtype: {name: models[name] for name in models if dtype != "int8" or not others & {*models[name]}}
        for dtype in dtypes
    }


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    return markdown_table(HEADER, [row.cells() for row in rows])
