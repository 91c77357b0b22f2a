"""Fits the confidence of a model's translations on a validation set. Requires the extra `train`."""

from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sources import Pair
from ..data.words import scripts_of
from .confidence import Calibration, Calibrations, calibration_file, features_of
from .evaluation import sentence_chrf
from .scoring import score_pairs
from .translation import translate

MIN_PAIRS = 100  # a smaller validation set does not determine a calibration
MIN_BELOW = 10  # translations below the median: most of those of an untrained model equal it, with a chrF++ of 0
NEWTON_STEPS, RIDGE = 20, 1.0  # iterations and L2 penalty of the logistic regression


class CalibrationError(ValueError):
    """The pairs or their translations do not determine a calibration."""


def calibrate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[Pair],
    translations: Sequence[str] | None = None,
    **options: Any,
) -> Calibration:
    """Fit the confidence of a model on a validation set, for a direction of a model with language tags.

    The calibration is added to `model.calibrations`.

    Args:
        model: any model of `AutoModelForSeq2SeqLM`.
        tokenizer: its tokenizer.
        pairs: at least 100 pairs of a source and a reference, which are not training pairs.
        translations: the model's translations of the sources. By default, the sources are translated.
        **options: options of `translate`, or with `translations` options of `score_pairs`.

    Raises:
        CalibrationError: there are too few pairs, or almost all translations are equally good.
        ValueError: an argument is invalid, or sacrebleu is not installed.
    """
    if len(pairs) < MIN_PAIRS:
        raise CalibrationError(f"pairs must be at least {MIN_PAIRS} for a calibration, got {len(pairs)}.")
    sources, targets = zip(*pairs, strict=True)
    languages = {name: options.get(name) for name in ("src_lang", "tgt_lang")}
    if translations is None:
        translations = translate(sources, model, tokenizer, **options)
        options = languages
    rated = list(zip(sources, translations, strict=True))
    scores = score_pairs(model, tokenizer, rated, token_scores=True, truncation=True, **options)
    features = np.array(list(map(features_of, rated, scores)))
    chrf = np.array(list(map(sentence_chrf, translations, [[target] for target in targets])))
    threshold = float(np.median(chrf))
    is_good = chrf >= threshold
    below = len(pairs) - int(is_good.sum())
    if below < MIN_BELOW:
        raise CalibrationError(
            f"translations must be {MIN_BELOW} or more with a chrF++ below the median, {threshold:.2f}, got {below} of "
            f"{len(pairs)}."
        )
    bias, *weights = fit_logistic(features, is_good).tolist()
    calibration = Calibration(
        threshold=threshold,
        pairs=len(pairs),
        weights=weights,
        bias=bias,
        length_ratio=median(len(target) / len(source) for source, target in pairs),
        scripts=scripts_of(targets),
    )
    calibrations = getattr(model, "calibrations", Calibrations())
    calibrations.by_file[calibration_file(tokenizer, **languages)] = calibration
    model.calibrations = calibrations
    return calibration


def fit_logistic(features: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The bias and the weights of a logistic regression with a ridge penalty, by Newton's method.

    Args:
        features: `[examples, features]`.
        labels: whether each example is positive, `[examples]`.
    """
    ones = np.ones(len(features))
    inputs = np.column_stack([ones, features])
    variances = features.var(axis=0)
    penalty = np.diag([0, *RIDGE * variances])  # equals a penalty on features of unit variance
    weights = np.zeros(inputs.shape[1])
    for _ in range(NEWTON_STEPS):
        probabilities = 1 / (1 + np.exp(-inputs @ weights))
        variance = probabilities * (1 - probabilities)
        gradient = inputs.T @ (probabilities - labels) + penalty @ weights
        curvature = (inputs.T * variance) @ inputs + penalty
        weights -= np.linalg.pinv(curvature) @ gradient
    return weights
