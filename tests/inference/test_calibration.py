"""The fit of a confidence on a validation set."""

from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.inference import calibration as calibration_module
from modeling_random_transformer.inference import translate
from modeling_random_transformer.inference.calibration import (
    MIN_PAIRS,
    RIDGE,
    CalibrationError,
    calibrate,
    fit_logistic,
)
from modeling_random_transformer.inference.confidence import copied_share, find_calibration
from modeling_random_transformer.inference.evaluation import sentence_chrf
from tests.helpers.calibration import calibrated_translator
from tests.helpers.translation import random_translator, some_texts


@pytest.fixture(scope="module")
def calibrated():
    """A model, whose calibration no test here reads, and its tokenizer."""
    return calibrated_translator()


def test_the_fit_gives_the_probabilities_of_the_examples():
    features = np.random.default_rng(0).normal(size=(4000, 2)) * [1, 20] + [0, 7]
    probabilities = 1 / (1 + np.exp(-(0.3 + features @ [1.5, -0.05])))
    labels = np.random.default_rng(1).random(4000) < probabilities
    assert fit_logistic(features, labels) == pytest.approx([0.3, 1.5, -0.05], abs=0.1)
    assert np.isfinite(fit_logistic(features, features[:, 0] > 0)).all()  # that can be separated
    assert np.isfinite(fit_logistic(np.ones((100, 2)), labels[:100])).all()


@given(st.integers(0, 1000), st.booleans())
def test_the_fit_is_the_minimum_of_the_penalized_loss(seed, can_be_separated):
    random = np.random.default_rng(seed)
    features = random.normal(size=(200, 3)) * [1, 20, 0.1]
    labels = features[:, 0] > 0 if can_be_separated else random.random(200) < 0.4
    bias, *weights = fit_logistic(features, labels)
    errors = labels - 1 / (1 + np.exp(-bias - features @ weights))
    assert errors.sum() == pytest.approx(0, abs=1e-6)
    assert errors @ features == pytest.approx(RIDGE * features.var(axis=0) * weights, abs=1e-5)


@given(st.integers(0, 1000), st.sampled_from([1e-3, 20.0]), st.floats(-5, 5))
def test_units_of_features_change_their_weights_only(seed, unit, origin):
    random = np.random.default_rng(seed)
    features, labels = random.normal(size=(200, 3)), random.random(200) < 0.4
    bias, *weights = fit_logistic(features, labels)
    scaled_bias, *scaled = fit_logistic(features * unit + origin, labels)
    assert scaled == pytest.approx(np.array(weights) / unit, rel=1e-4, abs=1e-6 / unit)
    assert scaled_bias + origin * sum(scaled) == pytest.approx(bias, rel=1e-4, abs=1e-6)


@given(st.integers(0, 1000), st.integers(1, 99))
def test_features_without_information_give_the_share_of_good_examples(seed, good):
    labels = np.random.default_rng(seed).permutation(100) < good
    bias, weight = fit_logistic(np.full((100, 1), 3.0), labels)
    assert 1 / (1 + np.exp(-bias - 3 * weight)) == pytest.approx(good / 100, rel=1e-6)


def test_a_calibration_describes_the_validation_set(tokenizer):
    model = random_translator()
    targets = some_texts(MIN_PAIRS, 1)
    pairs = [("ж" * 2 * len(target), target) for target in targets]
    translations = [*targets[:40], *some_texts(MIN_PAIRS - 40, 3)]
    calibration = calibrate(model, tokenizer, pairs, translations)
    chrf = [sentence_chrf(text, [target]) for text, target in zip(translations, targets, strict=True)]
    assert (calibration.threshold, calibration.pairs) == (pytest.approx(median(chrf)), MIN_PAIRS)
    assert calibration.length_ratio == 0.5
    assert calibration.scripts == ["Latin"]  # those of the targets only
    assert find_calibration(model, tokenizer) is calibration
    flipped = calibrate(model, tokenizer, pairs, [*some_texts(40, 3), *targets[40:]])
    assert flipped.weights != pytest.approx(calibration.weights)


def test_translations_are_those_of_translate_with_its_options(tokenizer):
    model, options = random_translator(), {"num_beams": 1, "max_new_tokens": 5}
    sources = some_texts(MIN_PAIRS, 1)
    translations = translate(sources, model, tokenizer, **options)
    targets = [*translations[:70], *some_texts(MIN_PAIRS - 70, 2)]
    pairs = list(zip(sources, targets, strict=True))
    expected = calibrate(model, tokenizer, pairs, translations)
    calibration = calibrate(model, tokenizer, pairs, **options)
    assert (calibration.threshold, calibration.weights) == (expected.threshold, pytest.approx(expected.weights))


def test_texts_in_the_target_language_that_the_model_copies_have_a_low_confidence(tokenizer, monkeypatch):
    targets = some_texts(MIN_PAIRS, 1)
    pairs = [("ж" * len(target), target) for target in targets]
    monkeypatch.setattr(calibration_module, "translate", lambda texts, *_, **__: list(texts))  # a model that copies
    translations = [*targets[:60], *some_texts(MIN_PAIRS - 60, 3)]
    calibration = calibrate(random_translator(), tokenizer, pairs, translations)
    values = [-1.0, -2.0, 0.5, 2.0, 0.0, 0.0]
    copied, not_copied = (calibration.confidence([*values, share]) for share in (1.0, 0.0))
    assert copied < not_copied / 2
    earlier = replace(calibration, source_weights=[])  # saved by an earlier version
    assert earlier.confidence([*values, 1.0]) == earlier.confidence([*values, 0.0]) > copied


@given(st.text(max_size=20), st.text(max_size=20))
def test_the_copied_share_is_that_of_the_parts_of_a_translation(source, translation):
    parts = [translation.lower()[i : i + 4] for i in range(len(translation.lower()) - 3)]
    expected = np.mean([part in source.lower() for part in parts]) if parts else 0
    assert copied_share(source, translation) == pytest.approx(expected)
    assert copied_share(translation, translation) == (1 if parts else 0)


def test_a_calibration_needs_enough_pairs(calibrated):
    with pytest.raises(ValueError, match=f"pairs must be at least {MIN_PAIRS}"):
        calibrate(*calibrated, [("a", "b")] * (MIN_PAIRS - 1))


@pytest.mark.parametrize(
    ("translations", "below"),
    [
        (["?"] * MIN_PAIRS, 0),  # of a model that was hardly trained
        (["the red car"] * MIN_PAIRS, 0),  # of training pairs
        (["?"] * 9 + ["the red car"] * (MIN_PAIRS - 9), 9),
    ],
)
def test_a_calibration_needs_good_and_bad_translations(translations, below, calibrated):
    pairs = [("el coche rojo", "the red car")] * MIN_PAIRS
    with pytest.raises(CalibrationError, match=f"translations must be 10 or more .*, got {below} of {MIN_PAIRS}"):
        calibrate(*calibrated, pairs, translations)
    assert calibrate(*calibrated, pairs, ["?"] * 10 + ["the red car"] * (MIN_PAIRS - 10)).pairs == MIN_PAIRS


@pytest.mark.parametrize(
    ("source", "target", "message"),
    [
        ("a", None, "index 1: texts must be strings, got None"),
        ("a", "\ud800", "index 1: texts must be Unicode, got"),
        (" ", "a", "index 1: texts must not be blank, got ' '"),
    ],
)
def test_texts_are_checked_before_they_are_translated(source, target, message):
    pairs = [("a", "b"), (source, target)] * MIN_PAIRS
    with pytest.raises(ValueError, match=message):
        calibrate(None, None, pairs)


def test_translations_and_targets_that_determine_nothing(calibrated):
    pairs = [("a", "\u200b")] * MIN_PAIRS  # blank, but not empty
    with pytest.raises(CalibrationError, match="pairs must have targets that are not blank, got 100 blank ones"):
        calibrate(*calibrated, pairs)
    with pytest.raises(ValueError, match="translations must be one per pair, 100, got 1"):
        calibrate(*calibrated, pairs, ["a"])
