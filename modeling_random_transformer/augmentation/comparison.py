"""Comparison of a teacher and its student on a test set: scores, speed and size in several dtypes."""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..configuration_random_transformer import RandomTransformerConfig
from ..data.sources import Languages
from ..export.compare import folder_size, time_interleaved
from ..inference import translate
from ..inference.evaluation import score
from ..inference.loading import load_translator, silence_transformers
from ..inference.startup import load_models
from ..ops_random_transformer import supports_native_matmul
from ..utils import DTYPES
from ..utils.tables import markdown_table
from .stages import language_options

ROUNDS, LONG = 3, 60  # measurements of the speed; only one if the translations of all models take this many seconds
HEADER = ("model", "dtype", "BLEU", "chrF++", "sentences/s", "MB")


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

    def compare(self, models: Mapping[str, Sequence[Path]], dtype: str, device: torch.device) -> list[Row]:
        """Translate the test set with several saved models or ensembles, in turns, because the load may change.

        Args:
            models: the folders of each model by its name.
            dtype: dtype of the weights.
            device: the device.
        """
        calls = [self.translation(name, folders, dtype, device) for name, folders in models.items()]
        start = time.perf_counter()
        translations = [call() for call in calls]
        rounds = ROUNDS if time.perf_counter() - start < LONG else 1
        seconds = map(statistics.median, time_interleaved(calls, rounds))
        return [
            self.row(name, dtype, texts, len(self.sources) / median, sum(saved_size(path, dtype) for path in folders))
            for (name, folders), texts, median in zip(models.items(), translations, seconds, strict=True)
        ]

    def translation(
        self, name: str, folders: Sequence[Path], dtype: str, device: torch.device
    ) -> Callable[[], list[str]]:
        """Load a model; the function that translates the test set with it."""
        model, tokenizer = load_models(folders, dtype, device, argument=name)
        options = {**self.options, **language_options(tokenizer, self.languages)}
        return lambda: translate(self.sources, model, tokenizer, **options)

    def row(self, name: str, dtype: str, translations: list[str], speed: float, megabytes: float) -> Row:
        """The row of a model."""
        scores = score(translations, self.references)
        bleu, chrf = scores["bleu"], scores["chrf"]
        return Row(name, dtype, bleu["score"], chrf["score"], speed, megabytes, bleu["signature"])


def saved_size(folder: Path, dtype: str) -> float:
    """The size of a model's weights when they are saved in this dtype, in megabytes (10⁶ bytes)."""
    model, _ = load_translator(folder, dtype)
    with TemporaryDirectory() as temporary, silence_transformers():
        model.save_pretrained(temporary)
        return folder_size(temporary, "*.safetensors")


def usable_dtypes(model_types: Sequence[str], device: torch.device) -> list[str]:
    """The dtypes to compare: without bfloat16 on CPUs that emulate it, without int8 for other architectures."""
    is_emulated = device.type == "cpu" and not supports_native_matmul(torch.bfloat16)
    excluded = {
        "bfloat16": is_emulated,
        "int8": any(name != RandomTransformerConfig.model_type for name in model_types),
    }
    return [dtype for dtype in DTYPES if not excluded.get(dtype)]


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    cells = (
        (
            row.model,
            row.dtype,
            f"{row.bleu:.2f}",
            f"{row.chrf:.2f}",
            f"{row.sentences_per_second:.1f}",
            f"{row.megabytes:.1f}",
        )
        for row in rows
    )
    return markdown_table(HEADER, cells)
