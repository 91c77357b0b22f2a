"""The exercises for beginners: gradient descent, and a Transformer for pictures."""

import math

import pytest
import torch

from tutorials.exercises import gradient_descent, patches

# 18. Gradient descent


@pytest.fixture(scope="module")
def descents():
    return gradient_descent.experiment(seed=0)


def test_gradient_of_a_line_by_hand_equals_autograd(descents):
    assert descents.gradient_difference < 1e-6


def test_learning_rate_must_be_neither_too_small_nor_too_large(descents):
    small, suitable, large = descents.line_losses.values()
    assert suitable[-1] == pytest.approx(descents.line_minimum, rel=1e-4)
    assert suitable[-1] < small[-1] / 5 < small[0] / 5
    assert large[-1] > 1000 * large[0]


def test_start_selects_the_minimum(descents):
    """One of the two minima is not the best one, although no point near it has a lower loss."""
    angles = torch.linspace(0, 2 * math.pi, 64, dtype=torch.float64)
    circle = 0.1 * torch.stack([angles.cos(), angles.sin()], dim=1)
    best, local = descents.path_losses.values()
    assert best < 1e-6
    assert local > 0.04
    for path, loss in zip(descents.paths.values(), (best, local), strict=True):
        neighbors = gradient_descent.loss_of(gradient_descent.two_units(path[-1] + circle), gradient_descent.BENT)
        assert neighbors.min() > loss - 1e-9


def test_network_without_activation_function_is_a_line(descents):
    loss, predictions = descents.fits["line"]
    linear_loss, linear_predictions = descents.fits["two linear layers"]
    assert linear_loss == pytest.approx(loss, rel=1e-3)
    torch.testing.assert_close(linear_predictions, predictions, rtol=0, atol=1e-2)
    assert linear_predictions.diff(n=2).abs().max() < 1e-9
    assert descents.fits["ReLU between them"][0] < loss / 100


# 19. Pictures


def test_patches_contain_each_pixel_once():
    pixels = torch.arange(2.0 * patches.SIDE**2).view(2, patches.SIDE, patches.SIDE)
    split = patches.split_patches(pixels)
    assert split.shape == (2, patches.GRID**2, patches.PATCH**2)
    assert torch.equal(split.flatten(1).sort().values, pixels.flatten(1))
    row, column = divmod(6, patches.GRID)
    top, left = row * patches.PATCH, column * patches.PATCH
    part = pixels[:, top : top + patches.PATCH, left : left + patches.PATCH]
    assert torch.equal(split[:, 6], part.flatten(1))


def test_embedding_is_a_linear_layer_of_one_hot_vectors():
    assert patches.text_difference(patches.PatchTransformer().transformer.eval()) < 1e-4


@pytest.mark.long
def test_transformer_recognizes_digits():
    result = patches.experiment(seed=0)
    recognized, shuffled, linear = result.accuracy.values()
    assert recognized > 0.95
    assert shuffled < 0.85
    assert linear < 0.5
    assert result.attention_ratio > 2
    assert result.parameters["input layer"] < sum(result.parameters.values()) / 50
