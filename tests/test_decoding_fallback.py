"""When `generate()` falls back to the modules: customized models, custom loops and unsupported arguments."""

import gc
import logging
from types import MethodType

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerModel
from modeling_random_transformer import generation_random_transformer as generation
from modeling_random_transformer import modeling_random_transformer as modeling
from modeling_random_transformer.generation_random_transformer import FastDecoder, FastDecodingCache
from modeling_random_transformer.modeling_random_transformer import (
    RandomTransformerAttention,
    RandomTransformerDecoder,
    RandomTransformerDecoderLayer,
    SinusoidalPositions,
)
from tests.helpers.models import BOS, VOCAB_SIZE, padded_batch, random_ids, tiny_model

BATCH = padded_batch([8, 5, 3])
SEARCHES = {"greedy": {}, "beams": {"num_beams": 3}}


@pytest.fixture(autouse=True)
def steps(monkeypatch):
    """Counts the steps that a `FastDecoder` takes."""
    taken, step = [], FastDecoder.__call__
    monkeypatch.setattr(FastDecoder, "__call__", lambda self, *inputs: taken.append(1) or step(self, *inputs))
    return taken


def exact_model(**overrides):
    """In float64, so that rounding does not hide errors."""
    return tiny_model(spread=2.0, **overrides).double()


def generate(model, batch=BATCH, **options):
    wanted = {"return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 8, "eos_token_id": -1}
    return model.generate(**batch, **wanted | options)


def assert_same(ours, theirs):
    assert torch.equal(ours.sequences, theirs.sequences)
    for mine, other in zip(ours.logits, theirs.logits, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-9, atol=1e-9)


class OtherLayer(RandomTransformerDecoderLayer):
    def feed_forward(self, states):
        return super().feed_forward(states) * 3


class OtherAttention(RandomTransformerAttention):
    @staticmethod
    def split_heads(projected, width):
        return -RandomTransformerAttention.split_heads(projected, width)


class OtherDecoder(RandomTransformerDecoder):
    def embed(self, *args, **kwargs):
        return super().embed(*args, **kwargs) * 0.5


class OtherModel(RandomTransformerModel):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.last_hidden_state = output.last_hidden_state.flip(-1)
        return output


class OtherHead(RandomTransformerForConditionalGeneration):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits.flip(-1)
        return output


class CalledFirst(RandomTransformerDecoderLayer):
    def __call__(self, states, *args, **kwargs):
        return super().__call__(states * 2, *args, **kwargs)


def negated(function):
    return lambda *args, **kwargs: -function(*args, **kwargs)


def subclass(path, cls):
    def change(model, _):
        model.get_submodule(path).__class__ = cls

    return change


def on_instance(path, name):
    def change(model, _):
        module = model.get_submodule(path)
        setattr(module, name, negated(getattr(module, name)))

    return change


def on_class(cls, name):
    def change(_, monkeypatch):
        monkeypatch.setattr(cls, name, negated(getattr(cls, name)))

    return change


def bound_method(model, _):
    layer = model.model.decoder.layers[1]
    layer.feed_forward = MethodType(lambda _, states: states.sin(), layer)


def patched_forward(_, monkeypatch):
    original = RandomTransformerAttention.forward

    def forward(self, *args, **kwargs):
        outputs, weights = original(self, *args, **kwargs)
        return outputs * 0.5, weights

    monkeypatch.setattr(RandomTransformerAttention, "forward", forward)


def another_attention(*args, scaling, **kwargs):
    return sdpa_attention_forward(*args, scaling=scaling * 3, **kwargs)


def registered(_, monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sdpa", another_attention)


def set_locally(_, monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._local_mapping, "sdpa", another_attention)


def implementation_of_its_own(model, monkeypatch):
    monkeypatch.setitem(ALL_ATTENTION_FUNCTIONS._global_mapping, "sharp", another_attention)
    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "sharp", sdpa_mask)
    model.set_attn_implementation("sharp")


def masks(_, monkeypatch):
    def first_token_hidden(*args, **kwargs):
        kwargs |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
        mask = sdpa_mask(*args, **kwargs).clone()
        mask[..., 0] &= mask.shape[-1] == 1
        return mask

    monkeypatch.setitem(ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "sdpa", first_token_hidden)


LAYER = "model.decoder.layers.1"
ATTENTION, CROSS = f"{LAYER}.self_attn", "model.decoder.layers.0.encoder_attn"
CUSTOMIZED = {
    "layer class": subclass(LAYER, OtherLayer),
    "layer call": subclass(LAYER, CalledFirst),
    "self-attention class": subclass(ATTENTION, OtherAttention),
    "cross-attention class": subclass(CROSS, OtherAttention),
    "decoder class": subclass("model.decoder", OtherDecoder),
    "model class": subclass("model", OtherModel),
    "head class": subclass("", OtherHead),
    "feed_forward of a layer": on_instance(LAYER, "feed_forward"),
    "bound feed_forward": bound_method,
    "feed_forward of the class": on_class(RandomTransformerDecoderLayer, "feed_forward"),
    "embed of the decoder": on_instance("model.decoder", "embed"),
    "forward of the layer class": on_class(RandomTransformerDecoderLayer, "forward"),
    "forward of the attention class": patched_forward,
    "registered attention": registered,
    "attention set locally": set_locally,
    "attention of another name": implementation_of_its_own,
    "registered mask": masks,
}


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("change", CUSTOMIZED)
def test_customized_modules_disable_the_fast_decoder(change, search, steps, monkeypatch):
    model = exact_model()
    shipped = generate(model, **SEARCHES[search])
    taken = len(steps)
    CUSTOMIZED[change](model, monkeypatch)
    ours = generate(model, **SEARCHES[search])
    assert len(steps) == taken == 7
    assert model.fallback_reason()
    assert_same(ours, generate(model, use_cache=False, **SEARCHES[search]))
    assert not torch.equal(ours.logits[-1], shipped.logits[-1])


class Cube(nn.Module):
    """An activation that is not elementwise."""

    def forward(self, states):
        assert states.dim() == 3
        return states**3 / states.norm(dim=-1, keepdim=True)


class ReversedEmbedding(nn.Embedding):
    def forward(self, ids):
        assert ids.dim() == 2
        return super().forward(ids).flip(-1)


class Halved(nn.Module):
    def forward(self, states):
        assert states.dim() == 3
        return states / 2


class OtherPositions(SinusoidalPositions):
    def forward(self, start, length, end):
        return super().forward(start, length, end)[None] * 3


def scaled(attention):
    return lambda model: setattr(model.get_submodule(attention), "scaling", 1.7)


def patched_norm(model):
    model.model.decoder.layers[0].final_layer_norm.forward = lambda states: states * 0.1


def replace(path, new):
    def change(model):
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, new(model))

    return change


LEAVES = {
    "activation": replace(f"{LAYER}.activation_fn", lambda _: Cube()),
    "embedding": lambda model: setattr(model.model.decoder.embed_tokens, "__class__", ReversedEmbedding),
    "positions": replace("model.decoder.embed_positions", lambda model: OtherPositions(model.config)),
    "final norm": replace("model.decoder.layer_norm", lambda _: Halved()),
    "norm of a layer": replace(f"{LAYER}.final_layer_norm", lambda _: Halved()),
    "forward of a norm": patched_norm,
    "projection": replace(f"{LAYER}.self_attn.q_proj", lambda _: Halved()),
    "scaling of self-attention": scaled(ATTENTION),
    "scaling of cross-attention": scaled(CROSS),
}


@pytest.mark.parametrize("change", LEAVES)
def test_fast_decoder_calls_customized_leaf_modules(change, steps):
    model = exact_model()
    shipped = generate(model)
    LEAVES[change](model)
    steps.clear()
    ours = generate(model)
    assert len(steps) == 7
    assert_same(ours, generate(model, use_cache=False))
    assert not torch.equal(ours.logits[-1], shipped.logits[-1])


def test_patched_pytorch_class(monkeypatch):
    model = exact_model()
    forward = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda self, states: forward(self, states) * 0.9)
    assert_same(generate(model), generate(model, use_cache=False))


def test_subclass_without_overrides_keeps_the_fast_decoder(steps):
    """A subclass, as created by FSDP2 or by a user who adds a method."""
    model = exact_model()
    model.__class__ = type("Mine", (RandomTransformerForConditionalGeneration,), {"count": lambda _: 3})
    generate(model)
    assert len(steps) == 7


def test_removed_layer(steps):
    model = exact_model()
    del model.model.decoder.layers[1]
    ours = generate(model)
    assert steps
    assert_same(ours, generate(model, use_cache=False))


def test_instance_forward_that_calls_the_original(steps):
    """As in Accelerate's mixed precision."""
    model = exact_model()
    forward = model.forward

    def halved(*args, **kwargs):
        output = forward(*args, **kwargs)
        output.logits = output.logits / 2
        return output

    model.forward = halved
    ours = generate(model)
    assert len(steps) == 7
    assert_same(ours, generate(model, use_cache=False))


def test_instance_forward_that_replaces_the_original(steps):
    model = exact_model()

    def forward(self, decoder_input_ids, encoder_outputs, attention_mask, past_key_values=None, **kwargs):
        output = self.model(
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            use_cache=kwargs["use_cache"],
        )
        output["logits"] = self.lm_head(output.last_hidden_state)
        return output

    expected = {search: generate(model, **options) for search, options in SEARCHES.items()}
    steps.clear()
    model.forward = MethodType(forward, model)
    for search, options in SEARCHES.items():
        assert_same(generate(model, **options), expected[search])
    assert not steps


def test_accelerate_in_mixed_precision(steps, monkeypatch):
    monkeypatch.setattr(AcceleratorState, "_shared_state", {})  # other tests of the process leave one
    model = Accelerator(cpu=True, mixed_precision="bf16").prepare_model(tiny_model(), evaluation_mode=True)
    assert "forward" in vars(model)
    generate(model)
    assert len(steps) == 7


@pytest.mark.parametrize("path", ["model.decoder.layers", "model.decoder.layers.2.self_attn", "model.decoder"])
def test_submodule_in_training_mode_disables_the_fast_decoder(path, steps):
    model = exact_model(dropout=0.1)
    model.get_submodule(path).train()
    generate(model)
    assert not steps
    assert "training mode" in model.fallback_reason()
    model.eval()
    generate(model)
    assert len(steps) == 7


def test_leaf_dropout_runs_at_every_step(steps):
    model, dropped = exact_model(), []
    model.model.decoder.layers[1].activation_fn = nn.Dropout(0.5)
    model.model.decoder.layers[1].activation_fn.register_forward_hook(lambda *_: dropped.append(1))
    generate(model)
    assert len(dropped) == 8
    assert len(steps) == 7


def test_monte_carlo_dropout_runs_at_every_step(monkeypatch):
    model = exact_model(dropout=0.3)
    model.model.decoder.layers.train()
    rates, dropout = [], modeling.dropout

    def counted(states, rate, training):
        if training and rate:
            rates.append(rate)
        return dropout(states, rate, training)

    monkeypatch.setattr(modeling, "dropout", counted)
    generate(model, max_new_tokens=1)
    first = len(rates)
    rates.clear()
    generate(model, max_new_tokens=8)
    assert len(rates) == 8 * first > 0


def two_tokens_a_step(model, input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs):  # noqa: ARG001
    """Appends the best token and its id plus 1, and processes both in the next step."""
    cache, kinds = model_kwargs["past_key_values"], set()
    for step in range(4):
        length = None if step == 0 else 2
        inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=length, **model_kwargs)
        outputs = model(**inputs, return_dict=True)
        model_kwargs = model._update_model_kwargs_for_generation(outputs, model_kwargs, is_encoder_decoder=True)
        best = outputs.logits[:, -1:].argmax(-1)
        input_ids = torch.cat([input_ids, best, (best + 1) % 61], dim=1)
        kinds.add(type(cache))
    assert FastDecodingCache not in kinds
    return input_ids


def test_custom_decoding_loop(steps):
    model = exact_model()
    ours = model.generate(**BATCH, custom_generate=two_tokens_a_step, max_new_tokens=8)
    assert not steps
    ids = torch.full((3, 1), BOS)
    for _ in range(4):
        best = model(**BATCH, decoder_input_ids=ids).logits[:, -1:].argmax(-1)
        ids = torch.cat([ids, best, (best + 1) % VOCAB_SIZE], dim=1)
    assert torch.equal(ours, ids)
    generate(model)
    assert len(steps) == 7


def test_steps_of_one_and_of_several_tokens(steps):
    """With the fast cache, as a replaced `_sample` would receive it."""
    model = exact_model()
    target = random_ids(3, 9, seed=1)
    expected = model(**BATCH, decoder_input_ids=target).logits
    cache, logits = FastDecodingCache(beams=1, limit=4), []
    encoded = model.model.encoder(**BATCH)
    for part in target.split([2, 1, 1, 3, 1, 1], dim=1):
        inputs = {"attention_mask": BATCH["attention_mask"], "encoder_outputs": encoded, "past_key_values": cache}
        logits.append(model(decoder_input_ids=part, **inputs).logits)
    torch.testing.assert_close(torch.cat(logits, dim=1), expected, rtol=1e-9, atol=1e-9)
    assert len(steps) == 4
    order = torch.tensor([2, 0, 1])
    keys = cache.self_attention_cache.layers[0].keys
    assert cache.get_seq_length() == 9
    cache.reorder_cache(order)
    assert torch.equal(cache.self_attention_cache.layers[0].keys, keys[order])


ARGUMENTS = {
    "labels": {"labels": random_ids(3, 4)},
    "a mask that hides nothing": {"decoder_attention_mask": torch.ones(3, 1, dtype=torch.long)},
    "no cache": {"past_key_values": None},
    "dynamic cache": {"cache_implementation": "dynamic"},
    "items in the batch": {"num_items_in_batch": 3},
    "all logits": {"logits_to_keep": 0},
    "a dictionary": {"return_dict_in_generate": True},
}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_that_do_not_change_decoding(name, steps):
    model = exact_model()
    expected = generate(model).sequences
    steps.clear()
    assert torch.equal(generate(model, **ARGUMENTS[name]).sequences, expected)
    assert len(steps) == 7


def test_source_embeddings_keep_the_fast_decoder(steps):
    model = exact_model()
    embeddings = {"inputs_embeds": model.get_input_embeddings()(BATCH["input_ids"])}
    expected = generate(model)
    steps.clear()
    assert_same(generate(model, {**embeddings, "attention_mask": BATCH["attention_mask"]}), expected)
    assert len(steps) == 7


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("capture", ["output_hidden_states", "output_attentions"])
def test_captured_outputs_disable_the_fast_decoder_for_one_call(capture, search, steps):
    model = exact_model()
    if capture == "output_attentions":
        model.set_attn_implementation("eager")
    states = {"output_hidden_states": "decoder_hidden_states", "output_attentions": "cross_attentions"}[capture]
    assert len(generate(model, **{capture: True}, **SEARCHES[search])[states]) == 8
    assert not steps
    model.set_attn_implementation("sdpa")
    ours = generate(model, **SEARCHES[search])
    assert len(steps) == 7
    assert_same(ours, generate(model, use_cache=False, **SEARCHES[search]))
    model.model.decoder.layers[0].register_forward_hook(lambda *_: None)
    generate(model)
    assert len(steps) == 7


REASONS = {
    "use_cache=False": {"use_cache": False},
    "output_hidden_states": {"output_hidden_states": True},
    "cache_implementation='static'": {"cache_implementation": "static"},
    "decoder_attention_mask": {
        "decoder_input_ids": torch.tensor([[0, 1]] * 3),
        "decoder_attention_mask": torch.tensor([[0, 1]] * 3),
    },
    "position_ids": {"position_ids": torch.zeros(3, 1, dtype=torch.long)},
    "custom_generate": {"custom_generate": lambda _, input_ids, **__: input_ids},
    "assisted_generation": {"prompt_lookup_num_tokens": 2},
}


@pytest.mark.parametrize("reason", REASONS)
def test_reason_is_logged_once(reason, caplog):
    generation.log_fallback.cache_clear()
    batch = padded_batch([5]) if reason == "assisted_generation" else BATCH
    model = exact_model()
    with caplog.at_level(logging.DEBUG, generation.logger.name):
        for _ in range(2):
            generate(model, batch, **REASONS[reason])
    messages = [record.getMessage() for record in caplog.records if record.name == generation.logger.name]
    assert len(messages) == 1
    assert reason in messages[0]


def tensors():
    return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())


def test_300_calls_leak_no_tensor():
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
        for call in range(300):
            model.generate(**batch, max_new_tokens=2, **options[call % 3])
        assert tensors() == before
    finally:
        gc.enable()
