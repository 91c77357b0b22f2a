"""Fits the confidence of a model's translations on a validation set. Requires the extra `train`."""

import math
from collections.abc import Sequence
from statistics import median
from typing import Any

import numpy as np
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..data.sources import Pair
from ..data.words import scripts_of
from ..inputs_random_transformer import check_string, check_text
from ..tokenization_random_transformer import is_blank
from .confidence import Calibration, Calibrations, calibration_file, features_of
from .evaluation import sentence_chrf
from .scoring import score_pairs
from .translation import translate

MIN_PAIRS = 100  # a smaller validation set does not determine a calibration
MIN_BELOW = 10  # translations below the median: most of those of an untrained model equal it, with a chrF++ of 0
NEWTON_STEPS, RIDGE = 20, 1.0  # iterations and L2 penalty of the logistic regression
MAX_OTHER_TEXTS = 200  # texts in the target language that are translated
OTHER_SHARE = 0.05  # the share of texts in the target language that is assumed in use


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

    The calibration is added to `model.calibrations`. The first 200 targets are also translated as if they were sources,
    as examples of texts that are already in the target language.

    Args:
        model: any model of `AutoModelForSeq2SeqLM`.
        tokenizer: its tokenizer.
        pairs: at least 100 pairs of a source and a reference, which are not training pairs.
        translations: the model's translations of the sources. By default, the sources are translated.
        **options: options of `translate`, or with `translations` options of `score_pairs`.

    Raises:
        CalibrationError: there are too few pairs, all targets are blank, or almost all translations are equally good.
        ValueError: an argument or a text is invalid, or sacrebleu is not installed.
    """
    check_pairs(pairs, translations)
    sources, targets = zip(*pairs, strict=True)
    languages: dict[str, Any] = {name: options.get(name) for name in ("src_lang", "tgt_lang")}
    search = scoring = languages
    if translations is None:
        search = options
        translations = translate(sources, model, tokenizer, **search)
    else:
        scoring = options
    features = features_of_pairs(model, tokenizer, sources, translations, **scoring)
    chrf = np.array(list(map(sentence_chrf, translations, [[target] for target in targets])))
    threshold = float(np.median(chrf))
    is_good = chrf >= threshold
    below = len(pairs) - int(is_good.sum())
    if below < MIN_BELOW:
        raise CalibrationError(
            f"translations must be {MIN_BELOW} or more with a chrF++ below the median, {threshold:.2f}, got {below} of "
            f"{len(pairs)}."
        )
    other_texts = [target for target in targets if not is_blank(target)][:MAX_OTHER_TEXTS]
    other_translations = translate(other_texts, model, tokenizer, **{**search, "truncation": True})
    other_features = features_of_pairs(model, tokenizer, other_texts, other_translations, **scoring)
    bias, *weights = fit_logistic(features[:, :-1], is_good).tolist()
    source_bias, *source_weights = fit_source_language(features, other_features).tolist()
    calibration = Calibration(
        threshold=threshold,
        pairs=len(pairs),
        weights=weights,
        bias=bias,
        length_ratio=median(len(target) / len(source) for source, target in pairs),
        scripts=scripts_of(targets),
        source_weights=source_weights,
        source_bias=source_bias,
    )
    calibrations = getattr(model, "calibrations", Calibrations())
    calibrations.by_file[calibration_file(tokenizer, **languages)] = calibration
    model.calibrations = calibrations
    return calibration


def check_pairs(pairs: Sequence[Pair], translations: Sequence[str] | None) -> None:
    """Check the pairs of a calibration before they are translated; see `calibrate` for the errors."""
    if len(pairs) < MIN_PAIRS:
        raise CalibrationError(f"pairs must be at least {MIN_PAIRS} for a calibration, got {len(pairs)}.")
    for index, (source, target) in enumerate(pairs):
        check_text(source, index)
        check_string(target, index)
    if translations is not None and len(translations) != len(pairs):
        raise ValueError(f"translations must be one per pair, {len(pairs)}, got {len(translations)}.")
    if all(is_blank(target) for _, target in pairs):
        raise CalibrationError(f"pairs must have targets that are not blank, got {len(pairs)} blank ones.")


def features_of_pairs(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sources: Sequence[str],
    translations: Sequence[str],
    **options: Any,
) -> np.ndarray:
    """The features of the confidence of translations, `[texts, features]`; `options` are those of `score_pairs`."""
    pairs = list(zip(sources, translations, strict=True))
    scores = score_pairs(model, tokenizer, pairs, token_scores=True, **{**options, "truncation": True})
    return np.array(list(map(features_of, pairs, scores)))


def fit_source_language(features: np.ndarray, other_features: np.ndarray) -> np.ndarray:
    """The bias and the weights of the probability that a text is in the source language.

    Args:
        features: those of texts in the source language, `[texts, features]`.
        other_features: those of texts in the target language, `[other_texts, features]`.
    """
    is_source = np.repeat([True, False], [len(features), len(other_features)])
    weights = fit_logistic(np.concatenate([features, other_features]), is_source)
    # The share of other texts is larger here than in use.
    odds, odds_in_use = len(features) / len(other_features), (1 - OTHER_SHARE) / OTHER_SHARE
    weights[0] += math.log(odds_in_use / odds)
    return weights


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
