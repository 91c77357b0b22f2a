"""Adds the confidence to translations, and replaces translations with a low confidence."""

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...base.progress import Update
from ...data.sources import Pair
from ...inference.candidates import Candidate, PrefixedText, TranslateRows
from ...inference.confidence import Calibration, features_of

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RatingTranslator:
    """Translates by another function, and rates the translations.

    Attributes:
        translate_rows: translates texts.
        score: scores pairs, with tokens and words.
        calibration: that of the model.
    """

    translate_rows: TranslateRows
    score: Callable[[Sequence[Pair | None]], list[Any]]
    calibration: Calibration

    def __call__(self, rows: Sequence[PrefixedText], first: int, update: Update) -> list[list[Candidate]]:
        """The candidates of each row, with a confidence unless the model has not translated the text."""
        pairs: list[Pair | None] = []
        translated = self.translate_rows(rows, first, update)
        for (text, _), candidates in zip(rows, translated, strict=True):
            for candidate in candidates:
                pairs.append((text, candidate.translation) if candidate.tokens else None)
        scored = zip(pairs, self.score(pairs), strict=True)
        for candidates in translated:
            for index, candidate in enumerate(candidates):
                pair, score = next(scored)
                if pair is not None:
                    confidence = self.calibration.confidence(features_of(pair, score))
                    candidates[index] = replace(candidate, confidence=confidence, words=score.words)
        return translated


@dataclass(frozen=True)
class SelectingTranslator:
    """Translates by another function, and replaces translations with a low confidence, which it counts in the log.

    Attributes:
        translate_rows: translates texts, and gives one candidate of each.
        minimum: the lowest confidence of a translation that is kept, 0 to 1.
        keep_source: replace others by the source, not by an empty text.
    """

    translate_rows: TranslateRows
    minimum: float
    keep_source: bool

    def __call__(self, rows: Sequence[PrefixedText], first: int, update: Update) -> list[list[Candidate]]:
        """One candidate of each row."""
        candidates = self.translate_rows(rows, first, update)
        replaced = 0
        for index, [best] in enumerate(candidates):
            if best.confidence is not None and best.confidence < self.minimum:
                candidates[index] = [replace(best, translation=rows[index].text if self.keep_source else "")]
                replaced += 1
        if replaced:
            logger.warning("%d of %d translations were below the minimum confidence.", replaced, len(rows))
        return candidates
