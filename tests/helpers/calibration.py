"""A random model with a calibration, and its translations."""

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from modeling_random_transformer.inference import translate_n_best
from modeling_random_transformer.inference.candidates import Candidate
from modeling_random_transformer.inference.confidence import CALIBRATION, Calibration, Calibrations
from tests.helpers.translation import SENTENCES, random_tokenizer, random_translator

TEXTS = [*SENTENCES[:3], "", "12:30"]
SHORT = {"num_beams": 2, "progress": False}
CALIBRATED = Calibration(
    threshold=50.0,
    pairs=100,
    weights=[0.5, 0.1, 0.2, -0.3, 0.1, 0.1],
    bias=1.0,
    length_ratio=1.0,
    scripts=["Latin"],
    source_weights=[0.1, 0.2, -0.1, 0.2, 0.1, -0.2, -2.0],
    source_bias=3.0,
)


def calibrated_translator() -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """A model and its tokenizer."""
    model = random_translator()
    model.calibrations = Calibrations()
    model.calibrations.by_file[CALIBRATION] = CALIBRATED
    return model, random_tokenizer()


def rated(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, texts: Sequence[str] = TEXTS, **options: Any
) -> list[Candidate]:
    """The best translation of each text, with its confidence."""
    options = {**SHORT, "n_best": None, "confidence": True, **options}
    return [best for [best] in translate_n_best(texts, model, tokenizer, **options)]
