"""transformers' `generate()`: every mode, the caches, and beams that share a source."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, GenerationMixin, StaticCache
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import utils

from modeling_random_transformer import RandomTransformerForCausalLM, RandomTransformerForConditionalGeneration
from modeling_random_transformer import generation_random_transformer as generation
from modeling_random_transformer.versions_random_transformer import cache_of, named_cache
from tests.helpers.models import (
    BOS,
    EOS,
    PAD,
    enable_checkpointing,
    exact_model,
    padded_batch,
    random_ids,
    tiny_config,
    tiny_model,
)

BATCH = padded_batch([8, 5, 3])
LENGTH = {"max_new_tokens": 12}


def best_tokens_equal(ids, scores):
    """A logits processor: two tokens that follow from the last one have the same, highest score."""
    best = torch.stack([ids[:, -1] * 7 % scores.shape[1], ids[:, -1] * 5 % scores.shape[1]], dim=1)
    return scores.scatter(1, best, -0.5)


MODES = {
    "greedy": {},
    "beam": {"num_beams": 4},
    "beam, all returned": {"num_beams": 4, "num_return_sequences": 4},
    "long": {"num_beams": 4, "length_penalty": 2.0},
    "short": {"num_beams": 4, "length_penalty": -2.0},
    "early": {"num_beams": 4, "early_stopping": True},
    "never early": {"num_beams": 4, "early_stopping": "never"},
    "no repeats": {"no_repeat_ngram_size": 2},
    "penalty": {"num_beams": 3, "repetition_penalty": 1.7},
    "sampling": {"do_sample": True, "temperature": 0.7},
    "top k": {"do_sample": True, "top_k": 5},
    "top p": {"do_sample": True, "top_p": 0.8, "top_k": 0},
    "min p": {"do_sample": True, "min_p": 0.1, "top_k": 0},
    "three samples": {"do_sample": True, "num_return_sequences": 3},
    "beam sampling": {"do_sample": True, "num_beams": 3, "num_return_sequences": 2},
    "two end tokens": {"num_beams": 4, "eos_token_id": [EOS, 9]},
    "no end token": {"num_beams": 4, "eos_token_id": -1},
    "equal scores": {"num_beams": 4, "logits_processor": [best_tokens_equal], "num_return_sequences": 4},
    "few tokens allowed": {"num_beams": 4, "prefix_allowed_tokens_fn": lambda *_: [7, 11, EOS]},
    "one token allowed": {"num_beams": 4, "prefix_allowed_tokens_fn": lambda *_: [7]},
    "minimum length": {"num_beams": 4, "min_new_tokens": 6},
    "stopping criterion": {"num_beams": 4, "stopping_criteria": [lambda ids, *_: ids[:, -1] % 3 == 0]},
}


class WithCopies(RandomTransformerForConditionalGeneration):
    """The same model with transformers' search: beams have copies of their source, and all caches are reordered."""

    # Through vars(): one of them is a static method in transformers 5.17.
    _expand_inputs_for_generation = vars(GenerationMixin)["_expand_inputs_for_generation"]
    _prepare_cache_for_generation = vars(GenerationMixin)["_prepare_cache_for_generation"]
    _get_top_k_continuations = vars(GenerationMixin)["_get_top_k_continuations"]

    def _reorder_cache(self, cache, beam_idx):
        cache.reorder_cache(beam_idx)
        return cache


def with_copies(model):
    copied = WithCopies(model.config).to(model.dtype).eval()
    copied.load_state_dict(model.state_dict())
    return copied


def generate(model, batch=BATCH, **options):
    torch.manual_seed(0)
    return model.generate(**batch, **{**LENGTH, **options})


@pytest.fixture(scope="module")
def model():
    return exact_model(spread=2.0)  # in float64, so that no choice depends on a CPU's rounding


@pytest.mark.parametrize(
    "backend", [torch.backends, torch.backends.cuda.matmul, torch.backends.mkldnn.matmul], ids=["all", "GPU", "CPU"]
)
def test_rounding_of_products_on_one_kind_of_device(backend):
    """As the Trainer's `tf32` and `torch_compile` set it. `torch.get_float32_matmul_precision()` is then an error."""
    model = exact_model()
    expected = model.generate(**padded_batch([5, 3]), max_new_tokens=5)
    backend.fp32_precision = "tf32"
    try:
        outputs = exact_model().generate(**padded_batch([5, 3]), max_new_tokens=5)
    finally:
        backend.fp32_precision = "none"
    assert torch.equal(outputs, expected)


def test_saved_limit_and_limit_of_a_call(monkeypatch):
    """Trained and converted models save `max_length`; `max_new_tokens` of a call replaces it silently."""
    model, warnings = exact_model(lm_head_bias=True), []
    model.lm_head.bias.data[EOS] = -torch.inf
    model.generation_config.max_length = 6
    monkeypatch.setattr(utils.logger, "warning", lambda message, *_: warnings.append(message))
    assert model.generate(**BATCH).shape[1] == 6
    for new in (3, 12):
        assert model.generate(**BATCH, max_new_tokens=new).shape[1] == 1 + new
        assert model.generate(BATCH["input_ids"], num_beams=2, max_new_tokens=new).shape[1] == 1 + new
    assert model.generate(**BATCH, max_length=9).shape[1] == 9
    model.generation_config.update(max_length=None, max_new_tokens=3)
    assert model.generate(**BATCH, max_length=9).shape[1] == 9
    assert model.generate(**BATCH).shape[1] == 4
    assert warnings == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_the_search_equals_that_of_transformers(mode, norm_order, monkeypatch):
    """With one source per beam, and with the selection of candidates by blocks."""
    monkeypatch.setattr(generation, "MIN_BLOCK_TOP_K", 0)
    monkeypatch.setattr(generation, "TOP_K_BLOCK", 4)
    model = exact_model(spread=2.0, norm_order=norm_order)
    options = MODES[mode] | {"return_dict_in_generate": True, "output_scores": True}
    ours, theirs = generate(model, **options), generate(with_copies(model), **options)
    for name in ("sequences", "beam_indices", "sequences_scores"):
        if name in ours:
            torch.testing.assert_close(ours[name], theirs[name])
    for our_scores, their_scores in zip(ours.scores, theirs.scores, strict=True):
        torch.testing.assert_close(our_scores, their_scores, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_cached_equals_uncached(model, mode, cache):
    uncached = generate(model, use_cache=False, **MODES[mode])
    assert torch.equal(generate(model, cache_implementation=cache, **MODES[mode]), uncached)


@pytest.mark.parametrize("mode", ["beam", "beam, all returned", "three samples"])
def test_source_is_not_copied_per_beam(model, mode, monkeypatch):
    """Bytes of the cross-attention cache: sources x length x heads x (d_k + d_v) x layers x 8 for any beams."""
    caches, update = set(), model._update_model_kwargs_for_generation
    monkeypatch.setattr(
        model,
        "_update_model_kwargs_for_generation",
        lambda outputs, *args, **kwargs: caches.add(cache_of(outputs)) or update(outputs, *args, **kwargs),
    )
    generate(model, **MODES[mode])
    (cache,) = caches
    tensors = [tensor for layer in cache.cross_attention_cache.layers for tensor in (layer.keys, layer.values)]
    storages = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes() for tensor in tensors}
    config = model.config
    per_token = config.num_heads * (config.d_k + config.d_v) * config.decoder_layers * 8
    assert sum(storages.values()) == BATCH["input_ids"].numel() * per_token


@pytest.mark.parametrize("mode", ["greedy", "beam", "beam, all returned", "three samples"])
@pytest.mark.parametrize("cache", ["own", "dynamic", "static"])
def test_returned_cache_has_one_row_per_beam(model, cache, mode):
    """As expected by transformers' generation tests."""
    options = named_cache(EncoderDecoderCache(DynamicCache(), DynamicCache())) if cache == "own" else {}
    options |= {"cache_implementation": "static"} if cache == "static" else {}
    wanted = {**MODES[mode], "return_dict_in_generate": True}
    returned = cache_of(generate(model, **wanted, **options))
    expected = cache_of(generate(with_copies(model), **wanted))
    assert type(returned) is EncoderDecoderCache
    for layer, expected_layer in zip(
        returned.cross_attention_cache.layers, expected.cross_attention_cache.layers, strict=True
    ):
        torch.testing.assert_close(layer.keys, expected_layer.keys)
        torch.testing.assert_close(layer.values, expected_layer.values)


def test_returned_static_cache_of_the_modules_has_one_row_per_beam():
    """Its layers have a fixed capacity, also those of the source."""
    model = exact_model(spread=2.0)
    model.set_attn_implementation("eager")
    options = {"cache_implementation": "static", "disable_compile": True, "return_dict_in_generate": True}
    cache = cache_of(generate(model, num_beams=3, **options))
    rows = 3 * len(BATCH["input_ids"])
    for part in (cache.self_attention_cache, cache.cross_attention_cache):
        assert {len(layer.keys) for layer in part.layers} == {rows}


def test_returned_cache_of_beams_after_a_decoder_layer_was_removed():
    """transformers creates a cache for the number of layers in the configuration."""
    model = exact_model(spread=2.0)
    model.set_attn_implementation("eager")
    del model.model.decoder.layers[2]
    outputs = generate(model, num_beams=3, return_dict_in_generate=True)
    assert torch.equal(outputs.sequences, generate(model, num_beams=3, use_cache=False))
    rows = 3 * len(BATCH["input_ids"])
    assert [len(layer.keys) for layer in cache_of(outputs).cross_attention_cache.layers] == [rows, rows]


@pytest.mark.parametrize("kind", ["dynamic", "static", "self-attention only"])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_cache_from_the_caller(model, kind, num_beams):
    cache = {
        "dynamic": lambda: EncoderDecoderCache(DynamicCache(), DynamicCache()),
        "static": lambda: EncoderDecoderCache(
            StaticCache(model.config.get_text_config(decoder=True), max_cache_len=20), DynamicCache()
        ),
        "self-attention only": DynamicCache,
    }[kind]()
    expected = generate(model, num_beams=num_beams)
    assert torch.equal(generate(model, num_beams=num_beams, **named_cache(cache)), expected)


@pytest.mark.parametrize("use_cache", [None, 0, []])
@pytest.mark.parametrize("head", [RandomTransformerForConditionalGeneration, RandomTransformerForCausalLM])
def test_cache_that_is_not_requested(head, use_cache):
    model = head(tiny_config()).double().eval()
    batch = {"input_ids": random_ids(2, 4)}
    options = {"output_logits": True, "return_dict_in_generate": True}
    expected = generate(model, batch, use_cache=False, **options)
    outputs = generate(model, batch, use_cache=use_cache, **options)
    assert cache_of(outputs) is None
    assert torch.equal(torch.stack(outputs.logits), torch.stack(expected.logits))
    with pytest.raises(ValueError, match=r"use_cache must be True with (cache|past_key_values), got "):
        generate(model, batch, use_cache=use_cache, past_key_values=DynamicCache())


def first_call(model, **options):
    """The sequences and the cache of four tokens, to be continued."""
    return generate(model, max_new_tokens=4, eos_token_id=-1, return_dict_in_generate=True, **options)


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize("new_tokens", [0, 2])
@pytest.mark.parametrize("mode", ["greedy", "sampling", "no repeats"])
def test_cache_of_an_earlier_call(model, mode, new_tokens, with_mask):
    """The target is all tokens, with or without a mask. Those in the cache are not computed again."""
    first = first_call(model, **MODES[mode])
    target = {"decoder_input_ids": torch.cat([first.sequences, random_ids(3, new_tokens)], dim=1)}
    if with_mask:
        target["decoder_attention_mask"] = torch.ones_like(target["decoder_input_ids"])
    expected = generate(model, **target)
    assert torch.equal(generate(model, **target, **named_cache(cache_of(first))), expected)


@pytest.mark.parametrize(
    ("before", "target", "after", "message"),
    [
        ({}, lambda ids: ids[:, :4], {}, "must contain all tokens in .*, 4, and at least one more, got 4 tokens"),
        ({}, lambda _: random_ids(3, 2), {}, "must contain all tokens in .*, 4, and at least one more, got 3 tokens"),
        ({}, lambda ids: ids, {"decoder_attention_mask": torch.ones(3, 7)}, r"the shape .*, \[3, 5\], got \[3, 7\]"),
        ({}, lambda ids: ids, {"num_beams": 3}, "must be of and for one sequence per source"),
        ({"num_beams": 3}, lambda ids: ids, {}, "must be of and for one sequence per source"),
    ],
)
def test_cache_that_cannot_be_continued(model, before, target, after, message):
    first = first_call(model, **before)
    with pytest.raises(ValueError, match=message):
        generate(model, decoder_input_ids=target(first.sequences), **named_cache(cache_of(first)), **after)


@pytest.mark.parametrize("mode", [{}, {"num_beams": 3}])
def test_mask_of_padded_sources(mode, model):
    """Without a mask, the padding of sources is not a part of them. A model whose padding ends texts needs the mask."""
    expected = model.generate(**BATCH, **mode, **LENGTH)
    ids = BATCH["input_ids"]
    for arguments in ({"inputs": ids}, {"input_ids": ids}, {"input_ids": ids, "attention_mask": None}):
        assert torch.equal(model.generate(**arguments, **mode, **LENGTH), expected)
    assert not torch.equal(model.generate(ids, attention_mask=torch.ones_like(ids), **mode, **LENGTH), expected)
    for end in (PAD, [EOS, PAD], torch.tensor([EOS, PAD])):
        unmasked = model.generate(ids, attention_mask=torch.ones_like(ids), eos_token_id=end, **mode, **LENGTH)
        assert torch.equal(model.generate(ids, eos_token_id=end, **mode, **LENGTH), unmasked)


@pytest.mark.parametrize("mode", ["greedy", "beam", "three samples"])
def test_one_prompt_for_several_sources(mode, model):
    """Three copies of the prompt, one for each beam or sample, would belong to the three sources."""
    message = "decoder_input_ids must have a multiple of the sources' 3 rows, got 1"
    with pytest.raises(ValueError, match=message):
        generate(model, **{**MODES[mode], "num_beams": 3}, decoder_input_ids=torch.tensor([[BOS, 5]]))


@pytest.mark.parametrize("mode", ["greedy", "beam"])
@pytest.mark.parametrize("kind", [dict, tuple], ids=lambda kind: kind.__name__)
def test_encoder_outputs_of_every_kind(kind, mode, model):
    states = model.get_encoder()(**BATCH).last_hidden_state
    encoded = {"last_hidden_state": states} if kind is dict else (states,)
    options = {**MODES[mode], "return_dict_in_generate": True, "output_attentions": True}
    batch = {"attention_mask": BATCH["attention_mask"], "encoder_outputs": encoded}
    assert torch.equal(generate(model, batch, **options).sequences, generate(model, **MODES[mode]))
    with pytest.raises(ValueError, match=r"encoder_outputs must be a ModelOutput .* got Tensor\."):
        generate(model, batch | {"encoder_outputs": states}, **MODES[mode])


def test_cache_of_all_beams_of_one_source(model):
    """It has as many rows as sequences were returned, but those of the beams that were still searched."""
    batch = {"input_ids": random_ids(1, 5)}
    first = first_call(model, batch=batch, **MODES["beam, all returned"])
    with pytest.raises(ValueError, match="must be of and for one sequence per source"):
        generate(model, batch, decoder_input_ids=first.sequences, **named_cache(cache_of(first)))


@pytest.mark.parametrize("kind", [RandomTransformerForConditionalGeneration, RandomTransformerForCausalLM])
@pytest.mark.parametrize("num_beams", [1, 3])
def test_training_mode_with_gradient_checkpointing(kind, num_beams):
    """Without gradients, layers are not checkpointed, and their cache remains."""
    model = kind(tiny_config()).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3)
    batch = {"input_ids": random_ids(3, 5)}
    expected = generate(model, batch, num_beams=num_beams)
    enable_checkpointing(model.train(), use_reentrant=False)
    assert torch.equal(generate(model, batch, num_beams=num_beams), expected)


def test_no_cache_in_training_with_gradient_checkpointing():
    model = tiny_model()
    target = {"input_ids": random_ids(2, 3), "decoder_input_ids": random_ids(2, 3)}
    cache = cache_of(model(**target, use_cache=True))
    enable_checkpointing(model.train(), use_reentrant=False)
    with pytest.raises(ValueError, match=r"must be None in training with gradient checkpointing, .* EncoderDecoder"):
        model(**target, **named_cache(cache))


def test_static_cache_beyond_the_precomputed_positions():
    model = exact_model(spread=2.0, max_position_embeddings=4)
    assert torch.equal(generate(model, cache_implementation="static"), generate(model, use_cache=False))


def test_static_cache_that_is_larger_than_the_number_of_learned_positions():
    """transformers uses the cache of a longer call again."""
    model = exact_model(position_embedding="learned").eval()
    model.set_attn_implementation("eager")  # the modules compute all steps
    expected = generate(model, max_new_tokens=5)
    with pytest.raises(ValueError, match="max_position_embeddings=64, got"):
        generate(model, min_new_tokens=80, max_new_tokens=89, cache_implementation="static")
    assert torch.equal(generate(model, max_new_tokens=5, cache_implementation="static"), expected)


@settings(max_examples=10)
@given(seed=st.integers(0, 999), mode=st.sampled_from(["greedy", "beam", "no repeats", "penalty"]))
def test_batching_does_not_change_a_row(seed, mode):
    model = exact_model(seed, spread=2.0)
    together = generate(model, **MODES[mode])
    for row, length in enumerate(BATCH["attention_mask"].sum(1).tolist()):
        alone = generate(model, batch={"input_ids": BATCH["input_ids"][row : row + 1, :length]}, **MODES[mode])[0]
        assert torch.equal(together[row, : len(alone)], alone)
        assert torch.all(together[row, len(alone) :] == PAD)


@pytest.mark.parametrize("outputs", [{}, {"return_dict_in_generate": True}], ids=["ids", "dictionary"])
@pytest.mark.parametrize("end", [EOS, [EOS, 9]], ids=["one end", "two ends"])
def test_beam_search_fills_with_padding_after_the_end(end, outputs, model):
    """transformers fills with the end token if the padding token is 0."""
    assert model.generation_config.pad_token_id == 0
    options = {"num_beams": 4, "num_return_sequences": 4, "length_penalty": -2.0, "eos_token_id": end, **outputs}
    generated = generate(model, **options)
    rows = getattr(generated, "sequences", generated).tolist()
    ends = {EOS, *([end] if isinstance(end, int) else end)}
    lengths = set()
    for row in rows:
        length = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
        assert not any(row[length:])
        lengths.add(length)
    assert len(lengths) > 1


def search_with_patience(model, inputs, num_beams, limit, length_penalty):
    """The finished hypotheses of a beam search over one source, the best first, by passes without a cache."""
    beams, finished = [([model.config.decoder_start_token_id], 0.0)], []
    for length in range(1, LENGTH["max_new_tokens"] + 1):
        continuations = []
        for ids, total in beams:
            logits = model(**inputs, decoder_input_ids=torch.tensor([ids])).logits[0, -1]
            for token, log_probability in enumerate(logits.log_softmax(0).tolist()):
                continuations.append(([*ids, token], total + log_probability))
        continuations.sort(key=lambda continuation: -continuation[1])
        beams = []
        for rank, (ids, total) in enumerate(continuations[: 2 * num_beams]):
            if ids[-1] != EOS and length < LENGTH["max_new_tokens"]:
                beams.append((ids, total))
            elif rank < num_beams:
                finished.append((ids, total / length**length_penalty))
        beams = beams[:num_beams]
        if len(finished) >= limit:
            break
    return sorted(finished, key=lambda hypothesis: -hypothesis[1])


def model_with_ends():
    """A model whose hypotheses end at different lengths."""
    model = exact_model(seed=1, spread=2.0, lm_head_bias=True)
    model.lm_head.bias.data[EOS] = 8.0
    return model


@pytest.mark.parametrize("length_penalty", [0.0, 2.0])
@pytest.mark.parametrize(
    ("num_beams", "patience", "limit"), [(2, 1, 2), (2, 2, 4), (3, 1.5, 5), (5, 1.5, 8), (2, 4, 8)]
)
def test_the_search_ends_after_the_hypotheses_that_patience_requires(num_beams, patience, limit, length_penalty):
    """The number of finished hypotheses is rounded half up."""
    model = model_with_ends()
    search = {"num_beams": num_beams, "length_penalty": length_penalty, "early_stopping": True, "patience": patience}
    outputs = generate(model, **search, num_return_sequences=2, return_dict_in_generate=True, output_scores=True)
    sequences = outputs.sequences.unflatten(0, (-1, 2))
    scores = outputs.sequences_scores.unflatten(0, (-1, 2))
    for row, length in enumerate(BATCH["attention_mask"].sum(1).tolist()):
        inputs = {"input_ids": BATCH["input_ids"][row : row + 1, :length]}
        with torch.no_grad():
            expected = search_with_patience(model, inputs, num_beams, limit, length_penalty)[:2]
        for place, (ids, score) in enumerate(expected):
            assert sequences[row, place, : len(ids)].tolist() == ids
            assert not sequences[row, place, len(ids) :].any()
            assert scores[row, place].item() == pytest.approx(score, rel=1e-5)


def test_patience_of_the_model_and_of_a_call():
    model = model_with_ends()
    search = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True}
    patient_model = copy.deepcopy(model)
    patient_model.generation_config.patience = 3
    expected = generate(model, **search, patience=3)
    assert not torch.equal(expected, generate(model, **search))
    assert torch.equal(generate(patient_model, **search), expected)
    assert torch.equal(generate(model, generation_config=GenerationConfig(**search, patience=3)), expected)
    assert torch.equal(generate(patient_model, **search, patience=1), generate(model, **search))
    for without_effect in ({"num_beams": 1}, {"early_stopping": False}, {"early_stopping": "never"}):
        options = search | without_effect
        assert torch.equal(generate(patient_model, **options), generate(model, **options))


def test_patience_is_saved_with_a_model(tmp_path):
    """transformers drops options that it lacks from a config that was derived from the model's configuration."""
    model = tiny_model()
    model.generation_config.patience = 3
    model.save_pretrained(tmp_path)
    assert RandomTransformerForConditionalGeneration.from_pretrained(tmp_path).generation_config.patience == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"patience": 0.5, "num_beams": 1}, "patience must be None or a number from 1 to 100, got 0.5"),
        ({"patience": 0.5}, "patience must be None or a number from 1 to 100, got 0.5"),
        ({"patience": True}, "patience must be None or a number from 1 to 100, got True"),
        ({"patience": "2"}, "patience must be None or a number from 1 to 100, got '2'"),
        ({"patience": float("nan")}, "patience must be None or a number from 1 to 100, got nan"),
        ({"patience": 2, "early_stopping": None}, "early_stopping must be True with patience=2, got None"),
        ({"patience": 2, "early_stopping": "never"}, "early_stopping must be True with patience=2, got 'never'"),
    ],
)
def test_invalid_patience(options, message, model):
    with pytest.raises(ValueError, match=message):
        generate(model, **{"num_beams": 2, "early_stopping": True, **options})


def test_patience_causes_no_warning(monkeypatch):
    warnings = []
    for name in ("warning", "warning_once"):
        monkeypatch.setattr(utils.logger, name, lambda message, *_: warnings.append(message))
    model = model_with_ends()
    model.generation_config.patience = 2
    search = {"num_beams": 2, "early_stopping": True}
    generate(model, **search)
    model.generate(**BATCH, generation_config=GenerationConfig(**search, **LENGTH))
    assert warnings == []


def test_patience_of_a_call_within_another_call():
    """In a logits processor, for example."""
    model = model_with_ends()
    search = {"num_beams": 4, "length_penalty": 2.0, "early_stopping": True}
    expected = generate(model, **search, patience=2)

    def search_again(_, scores):
        model.generate(**BATCH, max_new_tokens=3, num_beams=2, early_stopping=True, patience=3)
        model.generate(**BATCH, max_new_tokens=2)
        return scores

    assert torch.equal(generate(model, **search, patience=2, logits_processor=[search_again]), expected)
