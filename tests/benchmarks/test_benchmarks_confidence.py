"""The figures of `python -m benchmarks confidence`, and its noisy texts."""

import numpy as np
import pytest

from benchmarks.confidence import auc, calibration_error, noisy_texts, spearman
from tests.helpers.translation import SENTENCES


def test_measures_of_confidence_have_the_values_computed_by_hand():
    confidence = np.array([0.1, 0.2, 0.75, 0.75])
    assert calibration_error(confidence, np.array([False, False, True, True])) == pytest.approx(0.2)
    assert spearman(confidence, np.array([5, 7, 30, 40])) == pytest.approx(1)
    assert auc(np.array([0.5, 0.9]), np.array([0.5, 0.1])) == 0.875


def test_noisy_texts_are_always_the_same_and_never_blank():
    texts = noisy_texts(SENTENCES, ["un chien", "un chat"], 80)
    assert texts == noisy_texts(SENTENCES, ["un chien", "un chat"], 80)
    assert len(texts) == 80
    assert all(map(str.strip, texts))
    assert {"un chien", "un chat"} <= set(texts)
