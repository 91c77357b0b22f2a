"""The fit of a confidence on a validation set."""

import numpy as np
import pytest

from modeling_random_transformer.inference.calibration import MIN_PAIRS, CalibrationError, calibrate, fit_logistic
from tests.helpers.calibration import calibrated_translator


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
