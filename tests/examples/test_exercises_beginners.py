"""The exercises for beginners: gradient descent, and a Transformer for pictures."""

import math

import pytest
import torch

from modeling_random_transformer.tutorials.exercises import gradient_descent


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


# 18. Gradient descent


@pytest.fixture(scope="module")
def descents():
    return gradient_descent.compare_descents(seed=0)


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


def test_plot_of_gradient_descent(descents, tmp_path, capsys):
    gradient_descent.show_descents(descents, tmp_path)
    assert (tmp_path / "gradient_descent.png").read_bytes().startswith(b"\x89PNG")
    assert "two linear layers" in capsys.readouterr().out
