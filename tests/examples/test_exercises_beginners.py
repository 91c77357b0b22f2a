"""The exercises for beginners: gradient descent, a Transformer for pictures, and parts that look like details."""

import math

import pytest
import torch

from tutorials.exercises import batch_norm, gradient_descent, norm_parameters, patches, weight_tying
from tutorials.exercises.tasks import tiny_model

# 18. Gradient descent


@pytest.fixture(scope="module")
def descents():
    return gradient_descent.experiment(seed=0)


def test_kaiming_keeps_the_size_of_states_after_relu(descents):
    sizes = descents.sizes
    assert sizes["ReLU", "Xavier"] < 0.01
    assert 0.5 < sizes["ReLU", "Kaiming"] < 2
    assert 0.1 < sizes["tanh", "Xavier"] < sizes["tanh", "Kaiming"] < 0.7


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


# 20. Weight tying


@pytest.mark.long
def test_two_matrices_are_not_similar():
    result = weight_tying.experiment(seed=0)
    one, two = result.parameters.values()
    assert two - one == 1000 * 96
    assert result.difference < 1e-4
    assert min(result.exact_match.values()) > 0.2
    assert result.own_row < 0.02
    assert abs(result.similarity) < 0.05


# 21. Gamma and beta


def test_gamma_and_beta_can_be_folded_into_the_next_layer():
    model = tiny_model(norm_parameters.TASK.vocab_size, seed=0, norm_order="pre", encoder_layers=2, decoder_layers=2)
    with torch.no_grad():
        for norm in norm_parameters.norms(model):
            norm.weight.normal_()
            norm.bias.normal_()
    assert norm_parameters.fold_difference(model) < 1e-9
    post_norm = tiny_model(norm_parameters.TASK.vocab_size, seed=0)
    with torch.no_grad():
        for norm in norm_parameters.norms(post_norm):
            norm.weight.normal_()
    assert norm_parameters.fold_difference(post_norm) > 0.01


@pytest.mark.long
def test_models_learn_without_gamma_and_beta():
    result = norm_parameters.experiment(seed=0)
    for (_, learned), training in result.trained.items():
        assert training.exact_match > 0.8
        assert learned or training.gamma == (1, 0)
    assert result.folded < 1e-9


# 22. Batch normalization


def test_batch_norm_is_that_of_torch():
    ours, theirs = batch_norm.BatchNorm(8), torch.nn.BatchNorm1d(8, eps=1e-6)
    for _ in range(3):
        states = 3 * torch.randn(5, 4, 8) + 1
        torch.testing.assert_close(ours(states), theirs(states.flatten(0, 1)).view_as(states))
    torch.testing.assert_close(ours.mean, theirs.running_mean)
    expected = (theirs.running_var - 0.9**3) * 19 / 20 + 0.9**3  # torch's running variance is that of a sample
    torch.testing.assert_close(ours.variance, expected)


@pytest.mark.parametrize("kind", [batch_norm.LAYER, batch_norm.BATCH])
def test_batch_normalization_depends_on_other_sentences(kind):
    model = batch_norm.build(kind, seed=0).train()
    assert (batch_norm.influence(model) > 0.01) == (kind == batch_norm.BATCH)
    states = torch.randn(3, 4, 64) * 5 + 2
    layer = model.model.encoder.layers[0].final_layer_norm
    dimensions = (0, 1) if kind == batch_norm.BATCH else (2,)
    assert layer(states).mean(dim=dimensions).abs().max() < 1e-5
    assert (layer(states).var(dim=dimensions, correction=0) - 1).abs().max() < 1e-3


@pytest.mark.long
def test_batch_normalization_needs_the_batch():
    result = batch_norm.experiment(seed=0)
    assert result.influence[batch_norm.LAYER] == 0
    assert result.evaluation[batch_norm.LAYER] == pytest.approx(result.batch[batch_norm.LAYER], abs=0.05)
    assert result.stepwise[batch_norm.LAYER] == pytest.approx(result.batch[batch_norm.LAYER], abs=0.05)
    assert result.stepwise[batch_norm.BATCH] < result.batch[batch_norm.BATCH] - 0.2
