"""Hooks: the paths of all values, an edited attention, copies, and what remains after the block."""

import copy

import pytest
import torch

from modeling_random_transformer import RandomTransformerForCausalLM, RandomTransformerForMaskedLM
from modeling_random_transformer import modeling_random_transformer as modeling
from modeling_random_transformer.extras.inspection import intervene, trace
from modeling_random_transformer.extras.inspection.hooks import AttentionHooks, HookManager, Observer, instrument
from modeling_random_transformer.modeling_random_transformer import eager_attention_forward
from tests.extras.inspection.test_record import CONFIGS, INPUTS, traced
from tests.helpers.models import assert_near, exact_model, tiny_model


def value_paths(model):
    with instrument(model, Observer()) as paths:
        return paths


@pytest.mark.parametrize("name", ["post-norm", "pre-norm", "no positions", "one final norm"])
def test_paths_are_those_of_the_trace(name):
    model = exact_model(**CONFIGS[name])
    assert sorted(value_paths(model)) == sorted(traced(model)[0])
    for model_class in (RandomTransformerForCausalLM, RandomTransformerForMaskedLM):
        one_stack = model_class(model.config).eval()
        recorded, _ = traced(one_stack, inputs={"input_ids": INPUTS["input_ids"]})
        assert sorted(value_paths(one_stack)) == sorted(recorded)


def test_a_copy_inside_a_trace_uses_its_own_weights():
    """It computes what it computes outside, and does not change the trace."""
    model = tiny_model()
    expected = tiny_model(seed=1)(**INPUTS).logits
    with trace(model) as recorded:
        copied = copy.deepcopy(model)
        copied.load_state_dict(tiny_model(seed=1).state_dict())
        inside = copied(**INPUTS).logits
        assert not recorded
        model(**INPUTS)
    assert_near(inside, expected, 1e-5)
    assert_near(copied(**INPUTS).logits, expected, 1e-5)
    assert recorded.keys() == traced(model)[0].keys()


def test_edited_attention_is_an_error(monkeypatch):
    """Its steps would not be those that a trace records."""

    def edited(module, query, key, value, mask, scaling, dropout):
        return eager_attention_forward(module, query, 2 * key, value, mask, scaling, dropout)

    model = tiny_model()
    monkeypatch.setattr(modeling, "eager_attention_forward", edited)
    with pytest.raises(ValueError, match="must compute eager_attention_forward"):
        traced(model)
    assert model.config._attn_implementation == "sdpa"


def test_compiled_model_raises():
    model = tiny_model()
    model.model.decoder._compiled_call_impl = model.forward  # as `compile()` sets it, without an import of two seconds
    with pytest.raises(ValueError, match="model must not be compiled"), trace(model):
        pytest.fail("the block must not be entered")


def state(model):
    """The state that hooks and replaced methods change."""
    return [
        (set(vars(module)), len(module._forward_hooks), len(module._forward_pre_hooks)) for module in model.modules()
    ]


def test_nothing_remains_after_an_error():
    model = exact_model()
    before, logits = state(model), model(**INPUTS).logits

    def fails(_):
        raise RuntimeError("no value")

    with pytest.raises(RuntimeError, match="no value"), intervene(model, {"decoder.embedding.scaled": fails}):
        model(**INPUTS)
    with intervene(model, {"encoder.embedding.scaled": 1.0}):
        model(**INPUTS)
    assert state(model) == before
    assert torch.equal(model(**INPUTS).logits, logits)
    assert not AttentionHooks.active
    assert not HookManager.active
    assert model.config._attn_implementation == "sdpa"
    assert model.model.encoder.embed_scale == model.config.d_model**0.5
    assert model.fallback_reason() is None
