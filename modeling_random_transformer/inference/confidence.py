"""The confidence of a translation: the probability that it is as good as the better half of a validation set.

The confidence is the product of two logistic regressions. The first gives the probability of a good translation of a
text in the source language. The second gives the probability that the text is in the source language, and not in the
target language, from which small models copy words. The features of both are the log-probabilities of the tokens,
which one forward pass gives for any search and any engine, the lengths of both texts, and the share of the translation
that is copied from the source. `calibrate` fits both regressions.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from operator import mul
from pathlib import Path
from statistics import fmean, pstdev

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..base.digests import weight_file_digests
from ..base.errors import reraise_as_value_error
from ..base.files import StrPath, read_json, write_json
from ..data.sources import Pair
from ..inputs_random_transformer import tokenizer_languages
from .scoring import PairScore

CALIBRATION = "confidence.json"
CALIBRATIONS = "confidence.*json"  # includes the files of single directions, such as confidence.en.de.json
COPIED_CHARACTERS = 4  # the length of the parts of a translation that are looked up in its source
UNDERLINED_BELOW = 0.2  # the probability below which a word of a translation is underlined
FEATURES = 7  # the number of features of a translation, see `features_of`


@dataclass(frozen=True)
class Calibration:
    """The parameters with which a confidence is computed from a translation.

    Attributes:
        threshold: the median chrF++ of the validation set, which a good translation reaches.
        pairs: the pairs of the validation set.
        weights: the change of the log-odds of a good translation per unit of each feature but the last.
        bias: the log-odds if all features are 0.
        length_ratio: characters of a target per character of its source.
        scripts: the Unicode scripts of the targets.
        files: the digests of the files of the model's weights.
        source_weights: the same as `weights`, for a text in the source language; of all features. Empty for a
            calibration of an earlier version, which does not know texts in the target language.
        source_bias: the log-odds if all features are 0.
    """

    threshold: float
    pairs: int
    weights: list[float]
    bias: float
    length_ratio: float
    scripts: list[str]
    files: dict[str, str] = field(default_factory=dict)
    source_weights: list[float] = field(default_factory=list)
    source_bias: float = 0.0

    def check(self) -> None:
        """Raise an error unless there is one finite weight for each feature, and all other numbers are finite."""
        counts = len(self.weights), len(self.source_weights)
        if counts not in ((FEATURES - 1, FEATURES), (FEATURES - 1, 0)):
            raise ValueError(f"weights and source_weights must be {FEATURES - 1} and {FEATURES}, got {counts}.")
        others = self.threshold, self.pairs, self.bias, self.length_ratio, self.source_bias
        for number in (*others, *self.weights, *self.source_weights):
            if not math.isfinite(number):
                raise ValueError(f"numbers must be finite, got {number}.")

    def save(self, folder: StrPath, name: str = CALIBRATION) -> None:
        """Write the calibration beside the model whose weights it is for; see `calibration_file` for the name."""
        write_json(Path(folder) / name, asdict(replace(self, files=weight_file_digests(folder))))

    def confidence(self, features: Sequence[float]) -> float:
        """The probability of a good translation, 0 to 1."""
        probability = logistic(self.bias, self.weights, features)
        if self.source_weights:
            probability *= logistic(self.source_bias, self.source_weights, features)
        return probability


def logistic(bias: float, weights: Sequence[float], features: Sequence[float]) -> float:
    """The probability that a logistic regression gives for the features that have a weight."""
    log_odds = bias + sum(map(mul, weights, features))
    return 1 / (1 + math.exp(-max(log_odds, -700)))


class Calibrations:
    """The calibrations in the folder of a model, one for each direction of a model with language tags.

    A calibration that was fitted for other weights is ignored. For this check, the weights are read when a calibration
    is first used, not when the model is loaded.

    Args:
        folder: the folder; `None` for a model that is in memory only.

    Attributes:
        by_file: the calibrations by the names of their files.

    Raises:
        ValueError: a file is damaged.
    """

    def __init__(self, folder: StrPath | None = None):
        self.folder = folder
        self.by_file: dict[str, Calibration] = {}
        for path in [] if folder is None else Path(folder).glob(CALIBRATIONS):
            with reraise_as_value_error(f"{path} must be a calibration"):
                calibration = Calibration(**read_json(path))
                calibration.check()
            self.by_file[path.name] = calibration

    @cached_property
    def digests(self) -> dict[str, str]:
        """The digests of the weights in the folder."""
        return {} if self.folder is None else weight_file_digests(self.folder)

    def get(self, name: str) -> Calibration | None:
        """The calibration with a file name, otherwise a calibration without a direction, or `None`."""
        calibration = self.by_file.get(name, self.by_file.get(CALIBRATION))
        if calibration is None or not calibration.files or calibration.files == self.digests:
            return calibration
        return None


def calibration_file(
    tokenizer: PreTrainedTokenizerBase, src_lang: str | None = None, tgt_lang: str | None = None
) -> str:
    """The file name of a calibration. With language tags, it contains the direction, by default the tokenizer's."""
    if not tokenizer_languages(tokenizer):
        return CALIBRATION
    return f"confidence.{src_lang or tokenizer.src_lang}.{tgt_lang or tokenizer.tgt_lang}.json"


def find_calibration(
    model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **languages: str | None
) -> Calibration | None:
    """The calibration of a loaded model, for a direction of a model with language tags; `None` if it has none."""
    calibrations = getattr(model, "calibrations", Calibrations())
    return calibrations.get(calibration_file(tokenizer, **languages))


def features_of(pair: Pair, score: PairScore) -> list[float]:
    """The features from which the confidence of a translation is computed.

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
        math.log(max(score.source_tokens, 1) / source_len),
        copied_share(*pair),
    ]


def copied_share(source: str, translation: str) -> float:
    """The share of the parts of four characters of a translation that its source has, 0 to 1, regardless of case."""
    source, translation = source.lower(), translation.lower()
    starts = range(len(translation) - COPIED_CHARACTERS + 1)
    copied = sum(translation[start : start + COPIED_CHARACTERS] in source for start in starts)
    return copied / max(len(starts), 1)
