"""Confidence of translations: the probability that one is as good as the better half of a validation set's.

It is a logistic regression of what the model knows about its translation: the log-probabilities of the tokens, which
one forward pass gives for any search and any engine, and the lengths of both texts. `calibrate` fits it.
"""

import json
import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import mul
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from transformers import PreTrainedModel

from ..base.digests import file_digest
from ..base.errors import reraise_as_value_error
from ..base.files import StrPath, read_json, write_atomically
from .candidates import Candidate, Row, Translate
from .scoring import Pair, PairScore

logger = logging.getLogger(__name__)

CALIBRATION = "confidence.json"


@dataclass(frozen=True)
class Calibration:
    """How features become a confidence, and what translations into the language have in common.

    Attributes:
        threshold: the median chrF++ of the validation set, which a good translation reaches.
        pairs: the pairs of the validation set.
        weights: the change of the log-odds of a good translation per unit of each feature.
        bias: the log-odds if all features are 0.
        length_ratio: characters of a target per character of its source.
        scripts: the Unicode scripts of the targets.
        files: the digests of the files of the model's weights.
    """

    threshold: float
    pairs: int
    weights: list[float]
    bias: float
    length_ratio: float
    scripts: list[str]
    files: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: StrPath) -> "Calibration | None":
        """The calibration of a saved model; `None` if there is none, or if it is that of other weights.

        Raises:
            ValueError: the file is damaged.
        """
        path = Path(folder) / CALIBRATION
        if not path.is_file():
            return None
        with reraise_as_value_error(f"{path} must be a calibration"):
            calibration = cls(**read_json(path))
        return calibration if calibration.files == weight_digests(folder) else None

    def save(self, folder: StrPath) -> None:
        """Write the calibration beside the model whose weights it is for."""
        content = asdict(replace(self, files=weight_digests(folder)))
        write_atomically(Path(folder) / CALIBRATION, [json.dumps(content, indent=2).encode()])

    def confidence(self, features: Sequence[float]) -> float:
        """The probability of a good translation, 0 to 1."""
        log_odds = self.bias + sum(map(mul, self.weights, features))
        return 1 / (1 + math.exp(-max(log_odds, -700)))


def weight_digests(folder: StrPath) -> dict[str, str]:
    """The digest of each file of weights in a folder, by its name."""
    return {path.name: file_digest(path) for path in sorted(Path(folder).glob("*.safetensors"))}


def calibration_of(model: PreTrainedModel) -> Calibration:
    """The calibration of a loaded model; raises a `ValueError` if it has none."""
    calibration = getattr(model, "calibration", None)
    if calibration is None:
        raise ValueError(
            "confidence must be given with a model that is calibrated, got one without confidence.json of its weights: "
            "make it by random-transformer calibrate --model FOLDER --source_file FILE --target_file FILE."
        )
    return calibration


def features_of(pair: Pair, score: PairScore) -> list[float]:
    """What the confidence of a translation is computed from.

    Args:
        pair: a source and its translation.
        score: the scores of the translation's tokens and words.
    """
    source_len, target_len = (max(len(text), 1) for text in pair)
    values = score.token_log_probabilities or [0.0]
    return [
        fmean(values),
        min(values),
        pstdev(values),
        math.log(score.tokens),
        math.log(target_len / source_len),
        # More tokens per character in words that the tokenizer does not know, such as those of another language.
        math.log((score.source_tokens or 1) / source_len),
    ]


@dataclass(frozen=True)
class RatingTranslator:
    """Translates by another function, and rates the translations.

    Attributes:
        translate: translates texts.
        score: scores pairs, with tokens and words.
        calibration: that of the model.
    """

    translate: Translate
    score: Callable[[Sequence[Pair | None]], list[Any]]
    calibration: Calibration

    def __call__(self, rows: Sequence[Row], first: int, update: Callable[[int], Any]) -> list[list[Candidate]]:
        """One candidate of each row, with a confidence unless the model has not translated the text."""
        pairs: list[Pair | None] = []
        translated = [best for [best] in self.translate(rows, first, update)]
        for (text, _), best in zip(rows, translated, strict=True):
            pairs.append((text, best.translation) if best.tokens else None)
        return [[self.rated(*row)] for row in zip(translated, pairs, self.score(pairs), strict=True)]

    def rated(self, candidate: Candidate, pair: Pair | None, score: PairScore | None) -> Candidate:
        """A candidate with its confidence, if it was scored."""
        if pair is None or score is None:
            return candidate
        confidence = self.calibration.confidence(features_of(pair, score))
        return replace(candidate, confidence=confidence, words=score.words or [])


@dataclass(frozen=True)
class SelectingTranslator:
    """Translates by another function, and replaces translations with a low confidence, which it counts in the log.

    Attributes:
        translate: translates texts, and gives one candidate of each.
        minimum: the lowest confidence of a translation that is kept, 0 to 1.
        keep_source: replace others by the source, not by an empty text.
    """

    translate: Translate
    minimum: float
    keep_source: bool

    def __call__(self, rows: Sequence[Row], first: int, update: Callable[[int], Any]) -> list[list[Candidate]]:
        """One candidate of each row."""
        candidates = self.translate(rows, first, update)
        replaced = 0
        for index, [best] in enumerate(candidates):
            if best.confidence is not None and best.confidence < self.minimum:
                candidates[index] = [replace(best, translation=rows[index][0] if self.keep_source else "")]
                replaced += 1
        logger.warning("%d of %d translations were below the minimum confidence.", replaced, len(rows))
        return candidates
