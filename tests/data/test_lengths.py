"""Limits of the lengths of pairs: of one pair, and of arrays of pairs."""

import numpy as np
import pytest

from modeling_random_transformer.data.lengths import NO_LIMITS, LengthLimits

LENGTHS = [(1, 1), (3, 9), (4, 9), (10, 5), (11, 5), (5, 20), (0, 1), (0, 0)]


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        (NO_LIMITS, set()),
        (LengthLimits(source=10), {(11, 5)}),
        (LengthLimits(target=9), {(5, 20)}),
        (LengthLimits(source=3, target=9), {(4, 9), (10, 5), (11, 5), (5, 20)}),
    ],
)
def test_pairs_that_are_too_long(limits, expected):
    sources, targets = np.array(LENGTHS).T
    assert {pair for pair in LENGTHS if limits.are_exceeded(*pair)} == expected
    assert limits.are_exceeded(sources, targets).tolist() == [pair in expected for pair in LENGTHS]


@pytest.mark.parametrize("limits", [{"source": -3}, {"target": 0}, {"source": "x"}])
def test_limits_are_positive_integers(limits):
    with pytest.raises(ValueError, match="must be None or a positive integer, got"):
        LengthLimits(**limits)


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [(2, {(3, 9), (4, 9), (11, 5), (5, 20), (0, 1)}), (2.5, {(3, 9), (5, 20), (0, 1)})],
)
def test_pairs_of_unequal_lengths(ratio, expected):
    limits = LengthLimits(ratio=ratio)
    sources, targets = np.array(LENGTHS).T
    assert {pair for pair in LENGTHS if limits.is_unequal(*pair)} == expected
    assert limits.is_unequal(sources, targets).tolist() == [pair in expected for pair in LENGTHS]


@pytest.mark.parametrize(
    ("limits", "positions", "expected"),
    [
        (LengthLimits(ratio=3), None, LengthLimits(ratio=3)),
        (LengthLimits(ratio=3), 64, LengthLimits(64, 64, 3)),
        (LengthLimits(source=10), 64, LengthLimits(10, 64)),
        (LengthLimits(100, 50), 64, LengthLimits(64, 50)),
    ],
)
def test_limits_of_a_model_with_learned_positions(limits, positions, expected):
    assert limits.within(positions) == expected
