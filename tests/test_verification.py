"""The comparison of `generate()` with definitions and with a pass without a cache, and how long it holds."""

import copy
import pickle
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import GenerationConfig

from modeling_random_transformer import verification_random_transformer as verification
from modeling_random_transformer.modeling_random_transformer import RandomTransformerLayer
from modeling_random_transformer.snapshot_random_transformer import (
    Snapshot,
    distinct,
    plain_values,
    sampled,
)
from modeling_random_transformer.verification_random_transformer import (
    INEXACT_ROUNDING,
    ROUNDING,
    can_verify,
    difference_reason,
    generation_option,
    has_float_weights,
    max_rounding,
    verify_transformers,
)
from tests.helpers.models import exact_model, padded_batch, tiny_model

BATCH = padded_batch([8, 5, 3])
SEARCHES = {"greedy": {}, "beams": {"num_beams": 3}, "static cache": {"cache_implementation": "static"}}


def generated(model, search):
    return model.generate(**BATCH, max_new_tokens=8, do_sample=False, disable_compile=True, **SEARCHES[search])


@pytest.mark.parametrize("search", SEARCHES)
def test_each_model_object_is_verified_once(search, monkeypatch):
    model = exact_model(spread=2.0)
    passes = []
    without_cache = type(model).logits_without_cache

    def counted(self, *args, **kwargs):
        passes.append(args)
        return without_cache(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "logits_without_cache", counted)
    for _ in range(2):
        generated(model, search)
    assert len(passes) == len(model.snapshot.verified_steps) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_default_device_and_data_type_have_no_effect(dtype):
    original = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            verify_transformers()
    finally:
        torch.set_default_dtype(original)


def test_generation_config_can_be_positional():
    model = exact_model(spread=2.0)
    config = GenerationConfig(num_beams=3, max_new_tokens=8, decoder_start_token_id=1, eos_token_id=2, pad_token_id=0)
    outputs = model.generate(BATCH["input_ids"], config, attention_mask=BATCH["attention_mask"])
    assert torch.equal(outputs, generated(exact_model(spread=2.0), "beams"))
    last_passes = [last_pass for _, _, last_pass in model.snapshot.verified_steps]
    assert last_passes == [3]  # beams are reordered before it


def test_rounding_of_products_is_no_error(monkeypatch):
    """TF32 and bfloat16 products, and exported graphs, whose weights may be quantized."""
    logits = torch.zeros(1, 5)
    model = tiny_model()
    assert max_rounding(model, logits) is None
    for precisions in (("tf32", "none"), ("ieee", "bf16")):
        monkeypatch.setattr(verification, "float32_precisions", lambda chosen=precisions: chosen)
        assert max_rounding(model, logits) == INEXACT_ROUNDING
    monkeypatch.undo()
    monkeypatch.setattr(model, "parameters", list)
    assert max_rounding(model, logits) == INEXACT_ROUNDING
    assert max_rounding(tiny_model().to(torch.bfloat16), logits) == INEXACT_ROUNDING


# Differences between logits


@pytest.mark.parametrize("dtype", ROUNDING)
@given(seed=st.integers(0, 1000), shift=st.sampled_from([0.0, 3.0]))
def test_logits_differ_by_more_than_the_rounding_of_their_dtypes(dtype, seed, shift):
    expected, noise = torch.randn(2, 50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    deviation = (expected - expected.mean()).norm() / noise.norm()
    near, far = (expected + share * ROUNDING[dtype] * deviation * noise for share in (0.5, 2))
    for values in (expected, near, far):
        values += shift  # has no effect on probabilities
    assert difference_reason(near.to(dtype), expected) is None
    assert difference_reason(expected, near.to(dtype)) is None
    assert f"(at most {100 * ROUNDING[dtype]:g}% by rounding)" in difference_reason(far.to(dtype), expected)
    assert difference_reason(far.to(dtype), expected, max_difference=4 * ROUNDING[dtype]) is None


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_logits_that_are_not_finite_differ(value):
    logits = torch.arange(5.0)
    assert difference_reason(logits, logits) is None
    assert difference_reason(logits.masked_fill(logits == 2, value), logits)
    assert difference_reason(logits, logits.masked_fill(logits == 2, value))


# What can be verified


def hooked(model):
    model.model.encoder.register_forward_hook(lambda *_: None)


def with_a_forward_of_its_own(model):
    model.model.encoder.forward = model.model.encoder.forward


OBSERVED = {
    "training": lambda model: model.train(),
    "training of one module": lambda model: model.lm_head.train(),
    "hook": hooked,
    "forward of a module": with_a_forward_of_its_own,
}


@pytest.mark.parametrize("change", OBSERVED)
def test_models_with_dropout_or_observers_are_not_verified(change):
    model = tiny_model()
    assert can_verify(model, {})
    OBSERVED[change](model)
    assert not can_verify(model, {})


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"num_beams": 4, "attention_mask": 1, "logits_processor": [], "streamer": None}, True),
        ({"pixel_values": None}, True),
        ({"pixel_values": 1}, False),
        ({"labels": 1}, False),
    ],
)
def test_calls_with_unknown_arguments_are_not_verified(arguments, expected):
    assert can_verify(tiny_model(), arguments) is expected


@pytest.mark.parametrize("place", ["argument", "generation config", "model"])
@pytest.mark.parametrize("options", [{"suppress_tokens": [5, 6]}, {"repetition_penalty": 1.5}], ids=str)
def test_assisted_decoding_may_change_logits_in_place(options, place):
    model = exact_model(spread=2.0).float()
    options = {**options, "max_new_tokens": 8, "do_sample": False}
    batch = padded_batch([5])
    expected = model.generate(**batch, **options)
    model.snapshot = None
    assisted = {"prompt_lookup_num_tokens": 2}
    if place == "model":
        model.generation_config.update(**assisted)
    elif place == "argument":
        options |= assisted
    else:
        options = {"generation_config": GenerationConfig(**options, **assisted)}
    assert torch.equal(model.generate(**batch, **options), expected)


def test_transformed_calls_are_not_verified():
    model, outcomes = tiny_model(), []
    torch.func.vmap(lambda states: outcomes.append(can_verify(model, {})) or states)(torch.zeros(2))
    assert outcomes == [False]


def test_an_option_of_the_call_precedes_those_of_configurations():
    model = SimpleNamespace(generation_config=GenerationConfig(num_beams=2))
    config = GenerationConfig(num_beams=3)
    assert generation_option(model, {"num_beams": 4, "generation_config": config}, "num_beams") == 4
    assert generation_option(model, {"num_beams": None, "generation_config": config}, "num_beams") == 3
    assert generation_option(model, {}, "num_beams") == 2
    assert generation_option(model, {}, "unknown") is None


class OtherTensor(torch.Tensor):
    """A tensor of another library, such as one with quantized values."""


def test_only_plain_float_tensors_count_as_float_weights():
    model = nn.Linear(2, 2)
    assert has_float_weights(model)
    model.bias = nn.Parameter(torch.zeros(2).as_subclass(OtherTensor))
    assert not has_float_weights(model)
    model.bias = nn.Parameter(torch.zeros(2, dtype=torch.int8), requires_grad=False)
    assert not has_float_weights(model)
    assert not has_float_weights(nn.Identity())


# How long a comparison holds


def written_without_a_count(model):
    model.lm_head.weight.data += 1


def replaced_weight(model):
    model.lm_head.weight = nn.Parameter(model.lm_head.weight.detach().clone())


def changed_in_place(model):
    with torch.no_grad():
        model.model.encoder.layers[1].fc1.weight[3, 0] += 1  # is not on a diagonal


def own_method(model):
    layer = model.model.decoder.layers[0]
    layer.feed_forward = lambda states: states


def other_module(model):
    model.model.decoder.layers[1].fc1 = nn.Linear(16, 24)


def new_class(model):
    layer = model.model.decoder.layers[0]
    layer.__class__ = type("Mine", (type(layer),), {})


def pre_hook(model):
    model.model.decoder.register_forward_pre_hook(lambda *_: None)


CHANGES = {
    "a write through .data": written_without_a_count,
    "a weight is replaced": replaced_weight,
    "one value of a weight": changed_in_place,
    "a method of a module": own_method,
    "a module": other_module,
    "a class": new_class,
    "a hook": hooked,
    "a hook before a module": pre_hook,
    "an attribute of a module": lambda model: setattr(model.model.decoder.layers[0].self_attn, "scaling", 3.0),
    "an attribute of the model": lambda model: setattr(model, "temperature", 3.0),
    "a field of the configuration": lambda model: setattr(model.config, "layer_norm_eps", 3.0),
    "the dtype": lambda model: model.double(),
    "the mode": lambda model: model.train(),
    "a layer less": lambda model: model.model.decoder.layers.pop(2),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_snapshot_ends_with_a_change(change):
    model = tiny_model()
    snapshot = Snapshot(model)
    assert snapshot.is_current(model)
    CHANGES[change](model)
    assert not snapshot.is_current(model)
    assert Snapshot(model).is_current(model)


def test_calls_do_not_end_a_snapshot():
    model = tiny_model()
    snapshot = Snapshot(model)
    model(**BATCH, labels=BATCH["input_ids"]).loss.backward()
    model.state_dict()
    model.eval()
    generated(model, "beams")
    assert snapshot.is_current(model)


def test_a_check_is_repeated_after_a_change():
    model, checked = tiny_model(), []

    def check(model):
        checked.append(model)
        return f"check {len(checked)}"

    first = model.renewed_snapshot()
    assert model.renewed_snapshot() is first
    changed_in_place(model)
    second = model.renewed_snapshot()
    reasons = [snapshot.reason_of("check", check, model) for snapshot in (first, first, second)]
    assert reasons == ["check 1", "check 1", "check 2"]


@pytest.mark.parametrize("change", [changed_in_place, written_without_a_count, own_method])
def test_steps_are_verified_again_after_a_change(change):
    model = tiny_model()
    first = model.renewed_snapshot()
    first.verified_steps.add("greedy")
    change(model)
    assert model.renewed_snapshot().verified_steps == set()


@pytest.mark.parametrize("options", [{}, {"output_hidden_states": True, "return_dict_in_generate": True}])
def test_an_edit_after_a_verified_call_is_verified(options, monkeypatch):
    """The edited layers depend on the number of tokens of a pass, which a cache changes."""
    model = exact_model(spread=2.0)
    arguments = {**BATCH, "max_new_tokens": 8, "disable_compile": True, **options}
    model.generate(**arguments)
    monkeypatch.setattr(RandomTransformerLayer, "norm_before", lambda _self, _norm, states: states * states.shape[1])
    with pytest.raises(RuntimeError, match=r"is wrong with a cache.* If you changed the model's code") as error:
        model.generate(**arguments)
    assert "install" not in str(error.value)


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda snapshot: pickle.loads(pickle.dumps(snapshot))])
def test_a_copy_of_a_model_has_no_snapshot(copied):
    assert copied(Snapshot(tiny_model())) is None


@given(st.integers(1, 12), st.integers(1, 12))
def test_samples_are_views_of_each_row_and_column(rows, columns):
    matrix = torch.zeros(rows, columns)
    sampled(matrix).fill_(1)
    assert matrix.any(dim=0).all()
    assert matrix.any(dim=1).all()
    assert matrix.sum() <= 2 * (rows + columns)
    vector = torch.zeros(columns)
    assert sampled(vector).fill_(1).shape == vector.shape
    assert vector.all()
    assert sampled(torch.zeros(())).shape == (1,)


def test_equal_objects_are_distinct_and_private_attributes_are_no_values():
    first, second = [1], [1]
    assert [*map(id, distinct([first, second, first]))] == [id(first), id(second)]
    assert plain_values([{"a": 1, "_b": 2, "c": [3]}, {"d": "x", "e": None}]) == [1, "x"]
