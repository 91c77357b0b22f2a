"""When `generate()` falls back to the modules: edited and customized models, custom loops, unsupported arguments."""

import copy
import gc
import logging
import pickle
import weakref
from functools import partial
from pathlib import Path
from types import MethodType

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from transformers import CompileConfig, dynamic_module_utils
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from modeling_random_transformer import DynamicInt8Config, RandomTransformerForConditionalGeneration
from modeling_random_transformer import generation_random_transformer as generation
from modeling_random_transformer import modeling_random_transformer as modeling
from modeling_random_transformer import ops_random_transformer as ops
from modeling_random_transformer.decoding_random_transformer import FastDecodingCache
from modeling_random_transformer.modeling_random_transformer import RandomTransformerDecoderLayer
from modeling_random_transformer.versions_random_transformer import accepts_cache, named_cache
from tests.helpers.edits import EDITS as MODEL_EDITS
from tests.helpers.models import assert_same_generation, exact_model, padded_batch, random_ids, tiny_model

BATCH = padded_batch([8, 5, 3])
SEARCHES = {"greedy": {}, "beams": {"num_beams": 3}}


@pytest.fixture(autouse=True)
def steps(monkeypatch):
    """Counts the fast steps of `generate()`; the cache of the comparison has a maximum length of 0."""
    taken, begin = [], FastDecodingCache.current_step

    def counted(self, *inputs):
        taken.extend([1] if self.max_length else [])
        return begin(self, *inputs)

    monkeypatch.setattr(FastDecodingCache, "current_step", counted)
    return taken


def generate(model, batch=BATCH, **options):
    wanted = {"return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 8, "eos_token_id": -1}
    return model.generate(**batch, **wanted | options)


PROJECT = "outputs = self.out_proj(outputs.flatten(2))"
EMBED = "hidden_states = self.embed(tokens, positions, position_limit)\n"
CROSS_KEYS = "key = self.split_heads(self.k_proj(states), self.config.d_k)"
MASK = "        source_mask = None\n"
WINDOW = """        distance = positions[:, None] - torch.arange(position_limit)
        mask = ((distance >= 0) & (distance < 20)).expand(len(tokens), 1, -1, -1)
"""
PADDING = "cross_attention_mask(self, hidden_states, encoder_hidden_states, encoder_attention_mask)"
# Edits of the modeling file: the original line and the new one.
EDITS = {
    "gate of attention": (PROJECT, PROJECT.replace("flatten(2)", "flatten(2).sigmoid()")),
    "1% of attention": (PROJECT, PROJECT.replace("flatten(2)", "flatten(2) * 1.01")),
    "positions": (EMBED, EMBED.replace("positions, position_limit", "positions + 7, None")),
    "padding of the source": (PADDING, PADDING.replace("encoder_attention_mask)", "None)")),
    "window of 20 tokens": (MASK, WINDOW + MASK),
    "random numbers": (PROJECT, PROJECT.replace("flatten(2)", "flatten(2) + 0 * torch.rand(1)")),
    "cached keys": (CROSS_KEYS, f"{CROSS_KEYS} * (1.5 if is_cross_attention else 1)"),
}
FOLLOWED = {"random numbers", "cached keys"}  # by the fast step
SCORES = "scores = torch.matmul(query, key.transpose(-1, -2)) * scaling"
EAGER_EDITS = {"capped scores": (SCORES, f"{SCORES}\n    scores = 3 * scores.tanh()")}


@pytest.fixture
def edited_model(tmp_path):
    """Load a saved model whose copy of the modeling file has been edited."""

    def load(edit, dtype=torch.float64, **options):
        folder = tmp_path / edit.replace(" ", "_").replace("%", "")
        tiny_model(spread=2.0).save_pretrained(folder)
        code = folder / Path(modeling.__file__).name
        original, new = (EDITS | EAGER_EDITS)[edit]
        assert original in code.read_text()
        code.write_text(code.read_text().replace(original, new))
        # As with trust_remote_code=True where this package is not imported.
        reference = f"modeling_random_transformer.{RandomTransformerForConditionalGeneration.__name__}"
        cls = dynamic_module_utils.get_class_from_dynamic_module(reference, str(folder))
        return cls.from_pretrained(folder, dtype=dtype, **options)

    return load


@pytest.mark.parametrize("edit", EDITS)
def test_generate_follows_an_edit_of_the_source(edit, edited_model, caplog):
    model = edited_model(edit)
    state = torch.random.get_rng_state()
    reason = model.fallback_reason()
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (reason is None) == (edit in FOLLOWED)
    if reason is not None:
        assert reason in caplog.text
    for search in SEARCHES.values():
        options = {"max_new_tokens": 26, **search}
        ours = generate(model, **options)
        assert_same_generation(ours, generate(model, use_cache=False, **options))
    shipped = generate(exact_model(spread=2.0), max_new_tokens=26, **search).logits[-1]
    assert torch.equal(ours.logits[-1], shipped) == (edit == "random numbers")


def softmax_of_half(scores, mask):
    hidden = ~mask if mask.dtype == torch.bool else mask < 0
    return (scores / 2).masked_fill(hidden, torch.finfo(scores.dtype).min).softmax(dim=-1)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_generate_follows_an_edit_of_the_softmax(implementation, monkeypatch):
    monkeypatch.setattr(modeling.masked_softmax, "__code__", softmax_of_half.__code__)
    model = exact_model(spread=2.0)
    model.set_attn_implementation(implementation)
    ours = generate(model)
    assert_same_generation(ours, generate(model, use_cache=False))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("edit", EAGER_EDITS)
def test_generate_follows_an_edit_of_eager_attention(edit, implementation, edited_model):
    model = edited_model(edit, attn_implementation=implementation)
    for search in SEARCHES.values():
        ours = generate(model, **search)
        assert_same_generation(ours, generate(model, use_cache=False, **search))
    shipped = generate(exact_model(spread=2.0), **search).logits[-1]
    assert torch.allclose(ours.logits[-1], shipped) == (implementation == "sdpa")


@pytest.mark.parametrize(
    "options",
    [{"dtype": torch.bfloat16}, {"dtype": torch.float32, "quantization_config": DynamicInt8Config()}],
    ids=["bfloat16", "int8"],
)
def test_rounding_does_not_hide_an_edit(options, edited_model):
    assert "differ by" in edited_model("gate of attention", **options).fallback_reason()


@pytest.mark.parametrize("spread", [0.0, 1.0, 4.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rounding_is_no_difference(dtype, spread):
    """Even if sharp attention enlarges it, or weights are zero."""
    assert tiny_model(spread=spread).to(dtype).fallback_reason() is None


LAYER = "model.decoder.layers.1"


class OtherLayer(RandomTransformerDecoderLayer):
    def feed_forward(self, states):
        return super().feed_forward(states) * 3


def negated(function):
    return lambda *args, **kwargs: -function(*args, **kwargs)


def other_class(model, _):
    model.get_submodule(LAYER).__class__ = OtherLayer


def method_of_a_layer(model, _):
    layer = model.get_submodule(LAYER)
    layer.feed_forward = negated(layer.feed_forward)


def negated_in(holder, name):
    return lambda _, monkeypatch: monkeypatch.setattr(holder, name, negated(getattr(holder, name)))


def new_code(_, monkeypatch):
    """As IPython's autoreload replaces it."""

    def feed_forward(self, states):
        return self.fc2(self.activation_fn(self.fc1(states))) * 3

    monkeypatch.setattr(RandomTransformerDecoderLayer.feed_forward, "__code__", feed_forward.__code__)


def another_attention(*args, scaling, **kwargs):
    return sdpa_attention_forward(*args, scaling=scaling * 3, **kwargs)


def registered(_, monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", another_attention)


def masks(_, monkeypatch):
    def first_token_hidden(*args, **kwargs):
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        mask = sdpa_mask(*args, **kwargs).clone()
        mask[..., 0] &= mask.shape[-1] == 1
        return mask

    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "sdpa", first_token_hidden)


CUSTOMIZED = {
    "layer class": other_class,
    "feed_forward of a layer": method_of_a_layer,
    "callable object": lambda model, _: setattr(model.get_submodule(LAYER), "feed_forward", partial(torch.mul, 2)),
    "feed_forward of the class": negated_in(RandomTransformerDecoderLayer, "feed_forward"),
    "function of the file": negated_in(modeling, "fast_dropout"),
    "forward of a class of PyTorch": negated_in(nn.Linear, "forward"),
    "code of feed_forward": new_code,
    "registered attention": registered,
    "registered mask": masks,
}


@pytest.mark.parametrize("change", CUSTOMIZED)
def test_customized_modules_disable_the_fast_decoder(change, steps, monkeypatch):
    """Also after `generate()` has compared the modules before the change."""
    model = exact_model(spread=2.0)
    shipped = generate(model)
    taken = len(steps)
    CUSTOMIZED[change](model, monkeypatch)
    ours = generate(model)
    assert len(steps) == taken == 7
    assert model.fallback_reason()
    assert_same_generation(ours, generate(model, use_cache=False))
    assert not torch.equal(ours.logits[-1], shipped.logits[-1])


class GatedLayer(RandomTransformerDecoderLayer):
    """Equals the original layer until its gate is trained."""

    def feed_forward(self, states):
        return super().feed_forward(states) * self.gate


def test_steps_are_compared_again_after_changes(steps, monkeypatch):
    compared, compare = [], generation.step_difference
    monkeypatch.setattr(generation, "step_difference", lambda model: compared.append(1) or compare(model))
    model = exact_model(spread=2.0)
    layer = model.model.decoder.layers[1]
    layer.__class__, layer.gate = GatedLayer, nn.Parameter(torch.ones(1))
    for _ in range(3):
        generate(model)
    model.train()
    model.eval()
    generate(model, num_beams=2)
    assert (len(compared), len(steps)) == (1, 28)
    with torch.no_grad():
        layer.gate += 0.1
    assert_same_generation(generate(model), generate(model, use_cache=False))
    assert (len(compared), len(steps)) == (2, 28)
    layer.gate.data -= 0.1  # a write that PyTorch does not count
    assert not model.fallback_reason()
    layer.gate.data += 0.1
    copied = copy.deepcopy(model).float()
    assert "differ by" in copied.fallback_reason()
    assert model.fallback_reason()
    assert len(compared) == 5


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("model", "forward"),
        ("model.decoder", "pre_hook"),
        ("model.decoder.layers.1", "hook"),
        ("model.decoder.layers.0.encoder_attn", "forward"),
        ("model.decoder.layers.0.self_attn.q_proj", "hook"),
        ("model.decoder.layers.0.self_attn.q_proj", "pre_hook"),
    ],
)
def test_a_hook_or_a_replaced_forward_is_called_at_every_step(kind, path, steps):
    """But not the comparison of steps, which would be a ninth call."""
    model, calls = exact_model(spread=2.0), []
    expected = generate(model)
    steps.clear()
    module = model.get_submodule(path)
    if kind == "forward":
        forward = module.forward
        module.forward = lambda *args, **kwargs: calls.append(1) or forward(*args, **kwargs)
    else:
        handle = getattr(module, f"register_forward_{kind}")(lambda *_: calls.append(1))
    assert_same_generation(generate(model), expected)
    assert len(calls) == 8
    assert not steps
    assert f"{path.removeprefix('model.')} has a hook" in model.fallback_reason()
    if kind != "forward":
        handle.remove()
        generate(model)
        assert len(steps) == 7


class Halved(nn.Module):
    def forward(self, states):
        assert states.dim() == 3
        return states / 2


def scaled(attention):
    return lambda model: setattr(model.get_submodule(attention), "scaling", 1.7)


def replaced(path):
    return lambda model: model.set_submodule(path, Halved())


def without_the_last_layer(model):
    del model.model.decoder.layers[1]


def without_the_first_layer(model):
    del model.model.decoder.layers[0]


def repeated_layer(model):
    model.model.decoder.layers.append(model.model.decoder.layers[0])


def trained(model):
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.weight *= 3


LEAVES = {
    "activation": lambda model: model.set_submodule(f"{LAYER}.activation_fn", nn.Tanh()),
    "final norm": replaced("model.decoder.layer_norm"),
    "projection": replaced(f"{LAYER}.self_attn.q_proj"),
    "scaling of self-attention": scaled(f"{LAYER}.self_attn"),
    "scaling of cross-attention": scaled("model.decoder.layers.0.encoder_attn"),
    "last layer": without_the_last_layer,
    "first layer": without_the_first_layer,
    "repeated layer": repeated_layer,
    "values of a weight": trained,
}


@pytest.mark.parametrize("change", LEAVES)
def test_fast_decoder_calls_customized_leaf_modules(change, steps):
    model = exact_model(spread=2.0)
    shipped = generate(model)
    LEAVES[change](model)
    steps.clear()
    ours = generate(model)
    assert len(steps) == 7
    assert_same_generation(ours, generate(model, use_cache=False))
    assert not torch.equal(ours.logits[-1], shipped.logits[-1])


@pytest.mark.parametrize("name", MODEL_EDITS)
def test_generate_follows_an_edit_of_the_model(name, steps, monkeypatch):
    options = {"norm_order": "pre", "lm_head_bias": True, "tie_word_embeddings": False, "share_embeddings": True}
    model = exact_model(**options)
    before = generate(model, num_beams=3)
    MODEL_EDITS[name](model)
    steps.clear()
    edited = generate(model, num_beams=3)
    assert steps
    assert not all(torch.equal(*pair) for pair in zip(edited.logits, before.logits, strict=True))
    monkeypatch.setattr(type(model), "fallback_reason", lambda _: "the modules are compared")
    assert_same_generation(edited, generate(model, num_beams=3))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["to_sparse", "to_sparse_csr"])
def test_sparse_weights(layout, steps, monkeypatch):
    """They have no address, and cannot be packed."""
    monkeypatch.setattr(ops, "MIN_PACKED_ELEMENTS", 0)
    model = tiny_model(spread=2.0)
    layer = model.get_submodule(LAYER).fc1
    layer.weight = nn.Parameter(getattr(layer.weight.detach(), layout)(), requires_grad=False)
    ours = generate(model, max_new_tokens=20)
    assert len(steps) == 19
    assert_same_generation(ours, generate(model, max_new_tokens=20, use_cache=False), 1e-4)


def test_subclass_without_overrides_keeps_the_fast_decoder(steps):
    """A subclass, as created by FSDP2 or by a user who adds a method."""
    model = exact_model(spread=2.0)
    model.__class__ = type("Mine", (RandomTransformerForConditionalGeneration,), {"count": lambda _: 3})
    generate(model)
    assert len(steps) == 7


def test_replaced_forward_of_the_model(steps):
    model = exact_model(spread=2.0)

    @accepts_cache
    def forward(self, decoder_input_ids, encoder_outputs, attention_mask, cache=None, **kwargs):
        output = self.model(
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            encoder_outputs=encoder_outputs,
            use_cache=kwargs["use_cache"],
            **named_cache(cache),
        )
        output["logits"] = self.lm_head(output.last_hidden_state)
        return output

    expected = {search: generate(model, **options) for search, options in SEARCHES.items()}
    steps.clear()
    model.forward = MethodType(forward, model)
    for search, options in SEARCHES.items():
        assert_same_generation(generate(model, **options), expected[search])
    del model.forward
    model.__class__ = type("Mine", (type(model),), {"forward": forward})
    assert_same_generation(generate(model), expected["greedy"])
    assert not steps


def test_accelerate_in_mixed_precision(steps, monkeypatch):
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})  # other tests of the process leave one
    model = Accelerator(cpu=True, mixed_precision="bf16").prepare_model(tiny_model(), evaluation_mode=True)
    assert "forward" in vars(model)
    generate(model)
    assert len(steps) == 7


def training(path):
    return lambda model: model.get_submodule(path).train()


def dropout_as_activation(model):
    model.set_submodule(f"{LAYER}.activation_fn", nn.Dropout(0.5))


TRAINED = {
    "decoder is in training mode": training("model.decoder"),
    "decoder.layers.2.self_attn is in training mode": training("model.decoder.layers.2.self_attn"),
    "differ by": dropout_as_activation,  # in training mode as a new module
}


@pytest.mark.parametrize("reason", TRAINED)
def test_training_mode_disables_the_fast_decoder(reason, steps):
    model = exact_model(spread=2.0, dropout=0.1)
    TRAINED[reason](model)
    generate(model)
    assert not steps
    assert reason in model.fallback_reason()
    model.eval()
    generate(model)
    assert len(steps) == 7


def test_steps_of_one_and_of_several_tokens(steps):
    """As a replaced `_sample` would take them."""
    model = exact_model(spread=2.0)
    target = random_ids(3, 9, seed=1)
    expected = model(**BATCH, decoder_input_ids=target).logits
    cache, logits, seen = FastDecodingCache(beams=1, max_length=4), [], 0
    encoder_inputs = {"attention_mask": BATCH["attention_mask"], "encoder_outputs": model.model.encoder(**BATCH)}
    for length in (2, 1, 1, 3, 1, 1):
        ids, seen = target[:, : seen + length], seen + length
        inputs = model.prepare_inputs_for_generation(ids, length, **named_cache(cache), **encoder_inputs)
        logits.append(model(**inputs).logits)
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, rtol=1e-9, atol=1e-9)
    assert len(steps) == 4
    assert cache.get_seq_length() == 9
    order = torch.tensor([2, 0, 1])
    cache.end_steps()
    keys = cache.self_attention_cache.layers[0].keys
    cache.reorder_cache(order)
    assert torch.equal(cache.self_attention_cache.layers[0].keys, keys[order])


ARGUMENTS = {
    "labels": {"labels": random_ids(3, 4)},
    "a mask that hides nothing": {"decoder_attention_mask": torch.ones(3, 1, dtype=torch.long)},
    "no cache": named_cache(None),
    "dynamic cache": {"cache_implementation": "dynamic"},
    "items in the batch": {"num_items_in_batch": 3},
    "all logits": {"logits_to_keep": 0},
    "embeddings": {"input_ids": None, "inputs_embeds": None},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_do_not_change_decoding(name, steps):
    model = exact_model(spread=2.0)
    expected = generate(model)
    steps.clear()
    inputs = BATCH | ARGUMENTS[name]
    if name == "embeddings":
        inputs["inputs_embeds"] = model.get_input_embeddings()(BATCH["input_ids"])
    assert_same_generation(generate(model, inputs), expected)
    assert len(steps) == 7


def test_captured_outputs_disable_the_fast_decoder_for_one_call(steps):
    """transformers keeps the hooks that capture them."""
    model = exact_model(spread=2.0)
    assert len(generate(model, output_hidden_states=True).decoder_hidden_states) == 8
    assert not steps
    ours = generate(model)
    assert len(steps) == 7
    assert_same_generation(ours, generate(model, use_cache=False))


REASONS = {
    "use_cache=False": {"use_cache": False},
    "output_hidden_states": {"output_hidden_states": True},
    "compile_config": {"cache_implementation": "static", "compile_config": CompileConfig()},
    "decoder_attention_mask": {
        "decoder_input_ids": torch.tensor([[0, 1]] * 3),
        "decoder_attention_mask": torch.tensor([[0, 1]] * 3),
    },
    "position_ids": {"position_ids": torch.zeros(3, 1, dtype=torch.long)},
    "custom_generate": {"custom_generate": lambda _, input_ids, **__: input_ids},
    "assisted_generation": {"prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize("reason", REASONS)
def test_unsupported_requests_disable_the_fast_decoder(reason, steps, caplog):
    batch = padded_batch([5]) if reason == "assisted_generation" else BATCH
    model = exact_model(spread=2.0)
    with caplog.at_level(logging.DEBUG, generation.logger.name):
        generate(model, batch, **REASONS[reason])
    assert not steps
    (message,) = [record.getMessage() for record in caplog.records if record.name == generation.logger.name]
    assert reason in message


def tensors():
    return sum(issubclass(type(tracked), torch.Tensor) for tracked in gc.get_objects())


@pytest.mark.slow
def test_90_calls_leak_no_tensor_and_the_model_is_freed():
    """Counted without garbage collection: no tensor of a call is part of a reference cycle."""
    model = tiny_model(spread=2.0)
    options = [{"num_beams": 2}, {"do_sample": True}, {"return_dict_in_generate": True, "output_scores": True}]
    batch = padded_batch([3, 2])
    for call in range(6):
        model.generate(**batch, max_new_tokens=2, **options[call % 3])
    gc.collect()
    before = tensors()
    gc.disable()
    try:
        for call in range(90):
            model.generate(**batch, max_new_tokens=2, **options[call % 3])
        assert tensors() == before
    finally:
        gc.enable()
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


def test_a_hook_that_refers_to_its_model_does_not_keep_it():
    model = tiny_model()
    model.model.encoder.layers[0].register_forward_hook(partial(lambda *_: None, model))
    model.generate(**padded_batch([3, 2]), max_new_tokens=2)
    reference = weakref.ref(model)
    del model
    gc.collect()
    assert reference() is None


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_of_a_model_that_has_generated_is_compared_itself(copied):
    model = tiny_model()
    options = padded_batch([3, 2]) | {"max_new_tokens": 2}
    expected = model.generate(**options)
    copy_of_model = copied(model)
    assert torch.equal(copy_of_model.generate(**options), expected)
    copy_of_model.model.decoder.layers[0].register_forward_hook(lambda *_: None)
    assert "hook" in copy_of_model.fallback_reason()
    assert model.fallback_reason() is None
