"""Comparison of a teacher and its student on a test set: scores, speed and size in several dtypes."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from ..data.sources import Languages
from ..evaluation import score
from ..export.compare import folder_size
from ..loading import load_translator
from ..loading.translator import silence_transformers
from ..ops_random_transformer import supports_native_matmul
from ..pipeline_random_transformer import tokenizer_languages
from ..translation import translate
from ..utils.command_line import MODEL_TYPE
from .distillation_arguments import DTYPES
from .models import load_models

WARM_UP = 8  # sentences
HEADER = ("model", "dtype", "BLEU", "chrF++", "sentences/s", "MB")


@dataclass
class Row:
    """The result of a model in one dtype.

    Attributes:
        model: `"teacher"` or `"student"`.
        dtype: dtype of the weights.
        bleu: BLEU, 0 to 100.
        chrf: chrF++, 0 to 100.
        sentences_per_second: throughput, in one run over the test set.
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

    def evaluate(self, name: str, dtype: str, folders: Sequence[Path], device: torch.device) -> Row:
        """Translate the test set with a saved model or an ensemble."""
        model, tokenizer = load_models(folders, dtype, device, argument=name)
        options = {**self.options, **language_options(tokenizer, self.languages)}
        translate(self.sources[:WARM_UP], model, tokenizer, progress=False, **options)
        start = time.perf_counter()
        translations = translate(self.sources, model, tokenizer, **options)
        seconds = time.perf_counter() - start
        scores = score(translations, self.references)
        return Row(
            name,
            dtype,
            bleu=scores["bleu"]["score"],
            chrf=scores["chrf"]["score"],
            sentences_per_second=len(self.sources) / seconds,
            megabytes=sum(saved_size(folder, dtype) for folder in folders),
            signature=scores["bleu"]["signature"],
        )


def language_options(tokenizer: PreTrainedTokenizerBase, languages: Languages | None) -> dict[str, str]:
    """The options `src_lang` and `tgt_lang` of `translate`; none for a tokenizer without language tags."""
    if languages is None or not tokenizer_languages(tokenizer):
        return {}
    return dict(zip(("src_lang", "tgt_lang"), languages, strict=True))


def saved_size(folder: Path, dtype: str) -> float:
    """The size of a model's weights when they are saved in this dtype, in megabytes (10⁶ bytes)."""
    model, _ = load_translator(folder, dtype)
    with TemporaryDirectory() as temporary, silence_transformers():
        model.save_pretrained(temporary)
        return folder_size(temporary, "*.safetensors")


def usable_dtypes(model_types: Sequence[str], device: torch.device) -> list[str]:
    """The dtypes to compare: without bfloat16 on CPUs that emulate it, without int8 for other architectures."""
    is_emulated = device.type == "cpu" and not supports_native_matmul(torch.bfloat16)
    excluded = {"bfloat16": is_emulated, "int8": any(name != MODEL_TYPE for name in model_types)}
    return [dtype for dtype in DTYPES if not excluded.get(dtype)]


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        HEADER,
        ("---",) * len(HEADER),
        *(
            (
                row.model,
                row.dtype,
                f"{row.bleu:.2f}",
                f"{row.chrf:.2f}",
                f"{row.sentences_per_second:.1f}",
                f"{row.megabytes:.1f}",
            )
            for row in rows
        ),
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
