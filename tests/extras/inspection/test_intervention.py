"""Interventions against the trace, against edited weights, and against gradients."""

from itertools import cycle

import pytest
import torch

from modeling_random_transformer.extras.inspection import intervene, trace
from tests.extras.inspection.test_hooks import value_paths
from tests.extras.inspection.test_record import CONFIGS
from tests.helpers.models import assert_near, exact_model, padded_batch, random_ids

SOURCE = padded_batch([6, 4])
INPUTS = {**SOURCE, "decoder_input_ids": random_ids(2, 3, seed=1)}
# Values that other values are computed from. A changed value is computed from these again, so it is not bitwise equal.
RECOMPUTED = ("mean", "variance", "probabilities")


@pytest.fixture(params=["post-norm", "pre-norm", "no positions", "one final norm"])
def model(request):
    return exact_model(**CONFIGS[request.param])


def run(model, replacements=None, inputs=INPUTS):
    """The trace of a forward pass with replaced values."""
    with torch.no_grad(), trace(model) as recorded, intervene(model, replacements or {}):
        model(**inputs)
    return recorded


def changed(path):
    """A function that changes a value of this path in a way that has an effect."""
    name = path.rpartition(".")[2]
    if name in ("ids", "choice"):
        return lambda ids: (ids + 1) % 61
    if name == "mask":
        return torch.zeros_like
    if name == "probabilities":
        return lambda value: value.flip(-1)
    return lambda value: value * 1.5 + torch.linspace(0, 0.2, value.shape[-1]).to(value)


def test_equal_values_change_nothing(model):
    model.set_attn_implementation("eager")
    expected = run(model)
    exact = {path: torch.clone for path in value_paths(model) if not path.endswith(RECOMPUTED)}
    actual = run(model, exact)
    assert all(torch.equal(actual[path], value) for path, value in expected.items())
    actual = run(model, dict.fromkeys(value_paths(model), torch.clone))
    for path, value in expected.items():
        torch.testing.assert_close(actual[path], value, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_every_value_is_replaced_and_used(norm_order):
    """A new value appears in the trace, changes the output, and changes no value that was computed before it."""
    model = exact_model(norm_order=norm_order, encoder_layers=1, decoder_layers=1, final_layer_norm=True)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:  # biases of 0 and scales of 1 would let a later layer norm remove an effect
                parameter += 0.2 * torch.randn_like(parameter)
    expected = run(model)
    order = list(expected)
    for path in order:
        actual = run(model, {path: changed(path)})
        assert torch.equal(actual[path], changed(path)(expected[path])), path
        earlier = order[: order.index(path)]
        assert all(torch.equal(actual[earlier_path], expected[earlier_path]) for earlier_path in earlier), path
        with torch.no_grad(), intervene(model, {path: changed(path)}):
            logits = model(**INPUTS).logits
        hidden_nothing = path.startswith("decoder") and path.endswith("encoder_attn.head.1.mask")
        assert hidden_nothing or (logits - expected["logits"]).abs().max() > 1e-6, path


def test_pre_norm_residual_reaches_the_next_residual_connection():
    model = exact_model(norm_order="pre", decoder_layers=1)
    recorded = run(model, {"decoder.layers.0.encoder_attn.residual": 2.0})
    assert_near(recorded["decoder.layers.0.ffn.residual"], 2.0 + recorded["decoder.layers.0.ffn.output"], 1e-12)


# Equivalent weights


def zero_head(model, attention, head):
    attention = model.get_submodule(attention)
    width = model.config.d_v
    with torch.no_grad():
        attention.out_proj.weight[:, head * width : (head + 1) * width] = 0


def zero_output(model, name):
    module = model.get_submodule(name)
    with torch.no_grad():
        module.weight.zero_()
        module.bias.zero_()


STACKS = ("encoder", "decoder")
EDITS = {
    "encoder.layers.1.self_attn.head.0.output": lambda m: zero_head(m, "model.encoder.layers.1.self_attn", 0),
    "decoder.layers.2.encoder_attn.head.1.weights": lambda m: zero_head(m, "model.decoder.layers.2.encoder_attn", 1),
    "decoder.layers.0.self_attn.output": lambda m: zero_output(m, "model.decoder.layers.0.self_attn.out_proj"),
    "encoder.layers.0.ffn.output": lambda m: zero_output(m, "model.encoder.layers.0.fc2"),
    "decoder.layers.1.ffn.inner": lambda m: zero_output(m, "model.decoder.layers.1.fc1"),
    "*.embedding.position": lambda m: [
        stack.embed_positions.table.zero_() for stack in (m.model.encoder, m.model.decoder)
    ],
}
SEARCHES = {
    "greedy": {},
    "beams": {"num_beams": 4},
    "no cache": {"num_beams": 4, "use_cache": False},
    "sampling": {"do_sample": True},
}


@pytest.mark.parametrize(
    ("norm_order", "path", "search"),
    [
        *zip(cycle(["post", "pre"]), EDITS, cycle(SEARCHES)),
        *zip(cycle(["pre", "post"]), [*EDITS][:2] * 2, SEARCHES, strict=False),
    ],
)
def test_ablation_equals_edited_weights(norm_order, path, search):
    options = SEARCHES[search] | {"max_new_tokens": 5, "eos_token_id": -1}
    model, edited = (exact_model(spread=2.0, norm_order=norm_order) for _ in range(2))
    EDITS[path](edited)
    torch.manual_seed(0)
    expected = edited.generate(**SOURCE, **options)
    torch.manual_seed(0)
    with intervene(model, {path: 0}) as counts:
        actual = model.generate(**SOURCE, **options)
        logits = model(**INPUTS).logits
    assert torch.equal(actual, expected)
    assert_near(logits, edited(**INPUTS).logits, 1e-12)
    assert counts[path] >= 2


def test_a_change_of_one_source_affects_only_its_beams():
    """A change of the second source's cross-attention changes only its translations, with and without a cache."""
    model = exact_model(spread=2.0)
    options = {"num_beams": 3, "num_return_sequences": 3, "max_new_tokens": 5, "eos_token_id": -1}

    def last_row_only(weights):
        return torch.cat([weights[:3], weights[3:].flip(-1)])

    expected = model.generate(**SOURCE, **options)
    with intervene(model, {"decoder.layers.*.encoder_attn.head.*.weights": last_row_only}):
        actual = model.generate(**SOURCE, **options)
        uncached = model.generate(**SOURCE, **options, use_cache=False)
    assert torch.equal(actual, uncached)
    assert torch.equal(actual[:3], expected[:3])
    assert not torch.equal(actual[3:], expected[3:])


# Patching


def test_patched_encoder_output_gives_the_other_translation():
    model = exact_model(spread=2.0)
    options = {"max_new_tokens": 5, "eos_token_id": -1}
    second_source = {"input_ids": random_ids(2, 6, seed=5), "attention_mask": SOURCE["attention_mask"]}
    expected = model.generate(**second_source, **options)
    recorded = run(model, inputs=INPUTS | second_source)
    with intervene(model, recorded.select("encoder.output")):
        assert torch.equal(model.generate(**SOURCE, **options), expected)


def test_interventions_are_applied_in_order():
    model = exact_model()
    with (
        intervene(model, {"logits": 1.0, "log*": lambda value: value * 3}) as inner,
        trace(model) as recorded,
        intervene(model, {"logits": lambda value: value + 4}),
    ):
        model(**INPUTS)
    assert (recorded["logits"] == 7).all()
    assert inner == {"logits": 1, "log*": 1}


def test_an_intervention_of_one_step_does_not_affect_others():
    model, path = exact_model(spread=2.0), "decoder.layers.1.ffn.output"
    options = {"max_new_tokens": 4, "eos_token_id": -1}
    with trace(model) as expected:
        model.generate(**SOURCE, **options)
    with trace(model) as recorded, intervene(model, {f"step.2.{path}": 0, "step.9.logits": 0}) as counts:
        model.generate(**SOURCE, **options)
    assert counts == {f"step.2.{path}": 1, "step.9.logits": 0}
    assert torch.equal(recorded.step(1)["logits"], expected.step(1)["logits"])
    assert not recorded.step(2)[path].any()
    assert expected.step(2)[path].any()
    with trace(model) as recorded, intervene(model, {f"step.0.{path}": 0, f"step.1.{path}": 0}):
        model.generate(**SOURCE, **options)
    assert [recorded.step(step)[path].any().item() for step in range(4)] == [False, False, True, True]


# Gradients


PATCHED = (
    "encoder.embedding.token",
    "encoder.embedding.scaled",
    "encoder.embedding.position",
    "encoder.layers.0.self_attn.head.1.key",
    "encoder.layers.0.self_attn.head.0.scaled_scores",
    "decoder.layers.0.self_attn.residual",
    "decoder.layers.0.encoder_attn.head.1.output",
    "decoder.layers.0.encoder_attn.variance",
    "decoder.layers.0.ffn.residual",
    "encoder.output",
)


@pytest.mark.parametrize(("path", "norm_order"), [*zip(PATCHED, cycle(["post", "pre"]))])
def test_gradients_of_replacements(path, norm_order):
    model = exact_model(norm_order=norm_order, encoder_layers=1, decoder_layers=1)
    value = run(model)[path].requires_grad_()

    def logits(value):
        with intervene(model, {path: value}):
            return model(**INPUTS).logits[0, -1, :5]

    assert torch.autograd.gradcheck(logits, value, fast_mode=True)


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_gradients_of_parameters(norm_order):
    """Doubled sub-layer outputs have the gradients of a model with doubled weights."""
    model, edited = (exact_model(norm_order=norm_order).train() for _ in range(2))
    with torch.no_grad():
        edited.model.encoder.layers[0].fc2.weight.mul_(2)
        edited.model.encoder.layers[0].fc2.bias.mul_(2)
    with intervene(model, {"encoder.layers.0.ffn.output": lambda value: 2 * value}):
        model(**SOURCE, labels=INPUTS["decoder_input_ids"]).loss.backward()
    edited(**SOURCE, labels=INPUTS["decoder_input_ids"]).loss.backward()
    for (name, weight), edited_weight in zip(model.named_parameters(), edited.parameters(), strict=True):
        factor = 2 if "encoder.layers.0.fc2" in name else 1
        torch.testing.assert_close(weight.grad, factor * edited_weight.grad, rtol=1e-9, atol=1e-12)


def test_checkpointed_gradients_of_interventions_are_equal():
    model, checkpointed = (exact_model(norm_order="pre").train() for _ in range(2))
    checkpointed.gradient_checkpointing_enable({"use_reentrant": False})
    replacements = {"encoder.layers.0.self_attn.residual": lambda value: value**2, "*.head.0.output": 0}
    for trained in (model, checkpointed):
        with intervene(trained, replacements):
            trained(**SOURCE, labels=INPUTS["decoder_input_ids"]).loss.backward()
    for weight, expected in zip(checkpointed.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(weight.grad, expected.grad, rtol=1e-9, atol=1e-12)


# Errors


@pytest.mark.parametrize(
    ("replacements", "message"),
    [
        ({"encoder.layers.2.ffn.output": 0}, r"have paths .*encoder\.layers\.1\.ffn\.output.*, got 'encoder.layers.2"),
        ({"step.x.logits": 0}, r"step\.N\.path .*got 'step\.x\.logits'"),
        ({"logits": "0"}, r"replacements\['logits'\] must be a number, a tensor or a function, got str"),
        ({"encoder.output": torch.zeros(7, 16)}, r"encoder.output' must have shape \[2, 6, 16\], got \[7, 16\]"),
        ({"encoder.output": lambda _: None}, "must return a tensor or a number, got NoneType"),
        ({"choice": 99999}, "the value of 'choice' must be ids below"),
        ({"choice": -1}, r"the value of 'choice' must be ids below .*, got \[\[-1"),
    ],
)
def test_invalid_replacements(replacements, message):
    model = exact_model()
    with pytest.raises(ValueError, match=message), intervene(model, replacements):
        model(**INPUTS)


def test_dtypes_of_replacements():
    model = exact_model().to(torch.bfloat16)
    with (
        trace(model) as recorded,
        intervene(model, {"encoder.output": torch.ones(16, dtype=torch.float64), "*.ids": 5}),
    ):
        model(**INPUTS)
    assert recorded["encoder.output"].dtype == torch.bfloat16
    assert (recorded["encoder.embedding.ids"] == 5).all()
