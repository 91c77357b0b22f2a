"""Paths of the values of a model, and the formula of each."""

import pytest
import torch

from modeling_random_transformer.extras.inspection.paths import (
    describe,
    find_stacks,
    layer_and_head,
    layer_norms,
    step_and_path,
)
from tests.helpers.models import tiny_config, tiny_model


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("encoder.layers.0.ffn.output", (None, "encoder.layers.0.ffn.output")),
        ("step.12.decoder.layers.0.ffn.output", (12, "decoder.layers.0.ffn.output")),
    ],
)
def test_steps_of_paths(path, expected):
    assert step_and_path(path) == expected


@pytest.mark.parametrize("path", ["step.x.logits", "step.1", "step.-1.logits", "step.1."])
def test_steps_are_integers(path):
    with pytest.raises(ValueError, match=r"paths must be of the form step\.N\.path with an integer N"):
        step_and_path(path)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("encoder.layers.3.self_attn.head.1.weights", (3, 1)),
        ("decoder.layers.10.ffn.output", (10, None)),
        ("logits", (None, None)),
    ],
)
def test_layers_and_heads_of_paths(path, expected):
    assert layer_and_head(path) == expected


def test_stacks_and_layer_norms():
    model = tiny_model()
    stacks = find_stacks(model)
    assert stacks == {"encoder": model.model.encoder, "decoder": model.model.decoder}
    assert list(layer_norms(stacks["encoder"].layers[0])) == ["self_attn", "ffn"]
    assert list(layer_norms(stacks["decoder"].layers[0])) == ["self_attn", "encoder_attn", "ffn"]
    with pytest.raises(ValueError, match="model must be a Random Transformer, got Linear"):
        find_stacks(torch.nn.Linear(2, 2))


def formula(path, **overrides):
    return describe(path, torch.zeros(1, 2), tiny_config(**overrides)).formula


SCORES = "encoder.layers.0.self_attn.head.0.scaled_scores"


def test_formulas_depend_on_the_configuration():
    assert "/ √8" in formula(SCORES)
    assert "· 0.5" in formula(SCORES, attention_scale=0.5)
    assert formula("encoder.layers.0.ffn.activation") != formula(
        "encoder.layers.0.ffn.activation", activation_function="gelu"
    )


def test_a_path_without_a_formula():
    with pytest.raises(KeyError, match=r"formulas\.toml must have a formula for 'unknown'"):
        describe("unknown", torch.zeros(1), tiny_config())
