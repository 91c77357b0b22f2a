"""transformers' `generate()`: every mode, the caches, and beams that share a source."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, GenerationMixin, StaticCache, StoppingCriteriaList, TextStreamer
from transformers.cache_utils import DynamicCache, EncoderDecoderCache
from transformers.generation import utils

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer
from tests.helpers.models import BOS, EOS, PAD, assert_near, exact_model, padded_batch, random_ids, tiny_model

BATCH = padded_batch([8, 5, 3])
LENGTH = {"max_new_tokens": 12}
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
}


class WithCopies(RandomTransformerForConditionalGeneration):
    """The same model with transformers' defaults: beams have copies of their source, and all caches are reordered."""

    # Through vars(): one of them is a static method in transformers 5.17.
    _expand_inputs_for_generation = vars(GenerationMixin)["_expand_inputs_for_generation"]
    _prepare_cache_for_generation = vars(GenerationMixin)["_prepare_cache_for_generation"]
    _get_logits_processor = vars(GenerationMixin)["_get_logits_processor"]
    _get_stopping_criteria = vars(GenerationMixin)["_get_stopping_criteria"]
    _get_top_k_continuations = vars(GenerationMixin)["_get_top_k_continuations"]
    _gather_beams = vars(GenerationMixin)["_gather_beams"]

    def _reorder_cache(self, past_key_values, beam_idx):
        past_key_values.reorder_cache(beam_idx)
        return past_key_values


def generate(model, seed=0, batch=BATCH, **options):
    torch.manual_seed(seed)
    return model.generate(**batch, **{**LENGTH, **options})


@pytest.fixture(scope="module")
def model():
    return exact_model(spread=2.0)  # in float64, so that no choice depends on a CPU's rounding


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
    assert warnings == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_beams_that_share_a_source_equal_beams_with_copies(mode, norm_order):
    shared = exact_model(spread=2.0, norm_order=norm_order)
    copied = WithCopies(shared.config).double().eval()
    copied.load_state_dict(shared.state_dict())
    options = MODES[mode] | {"return_dict_in_generate": True, "output_scores": True}
    ours, theirs = generate(shared, **options), generate(copied, **options)
    assert torch.equal(ours.sequences, theirs.sequences)
    for our_scores, their_scores in zip(ours.scores, theirs.scores, strict=True):
        torch.testing.assert_close(our_scores, their_scores, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_cached_equals_uncached(model, mode, cache):
    uncached = generate(model, use_cache=False, **MODES[mode])
    assert torch.equal(generate(model, cache_implementation=cache, **MODES[mode]), uncached)


def test_cached_scores_equal_uncached_scores(model):
    options = {"return_dict_in_generate": True, "output_scores": True, "num_beams": 4}
    cached, uncached = generate(model, **options), generate(model, use_cache=False, **options)
    assert_near(cached.sequences_scores, uncached.sequences_scores, 1e-5)


@pytest.mark.parametrize("mode", ["beam", "beam, all returned", "three samples"])
def test_source_is_not_copied_per_beam(model, mode, monkeypatch):
    """Bytes of the cross-attention cache: sources x length x heads x (d_k + d_v) x layers x 8 for any beams."""
    caches, update = set(), model._update_model_kwargs_for_generation
    monkeypatch.setattr(
        model,
        "_update_model_kwargs_for_generation",
        lambda outputs, *args, **kwargs: caches.add(outputs.past_key_values) or update(outputs, *args, **kwargs),
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
    options = {"past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())} if cache == "own" else {}
    options |= {"cache_implementation": "static"} if cache == "static" else {}
    theirs = WithCopies(model.config).to(model.dtype).eval()
    theirs.load_state_dict(model.state_dict())
    wanted = {**MODES[mode], "return_dict_in_generate": True}
    returned = generate(model, **wanted, **options).past_key_values
    expected = generate(theirs, **wanted).past_key_values
    assert type(returned) is EncoderDecoderCache
    for layer, other in zip(returned.cross_attention_cache.layers, expected.cross_attention_cache.layers, strict=True):
        torch.testing.assert_close(layer.keys, other.keys)
        torch.testing.assert_close(layer.values, other.values)


def test_returned_cache_of_several_rows_continues_generation(model):
    options = {"eos_token_id": [], "max_new_tokens": 4}
    first = generate(model, do_sample=True, num_return_sequences=3, return_dict_in_generate=True, **options)
    seen = {"decoder_attention_mask": torch.ones_like(first.sequences)}  # marks all of them as tokens
    options |= {"decoder_input_ids": first.sequences, **seen}
    options |= {"batch": {name: rows.repeat_interleave(3, 0) for name, rows in BATCH.items()}}
    cached = generate(model, past_key_values=first.past_key_values, **options)
    assert torch.equal(cached, generate(model, use_cache=False, **options))


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
    assert torch.equal(generate(model, num_beams=num_beams, past_key_values=cache), expected)


def test_static_cache_beyond_the_precomputed_positions():
    model = exact_model(spread=2.0, max_position_embeddings=4)
    assert torch.equal(generate(model, cache_implementation="static"), generate(model, use_cache=False))


@settings(max_examples=10)
@given(seed=st.integers(0, 999), lengths=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_one_beam_equals_greedy(seed, lengths):
    model, batch = exact_model(seed, spread=2.0), padded_batch(lengths, seed)
    assert torch.equal(generate(model, batch=batch, num_beams=1), generate(model, batch=batch))
    # transformers' beam search itself also keeps the best token with one beam.
    output = generate(model, batch=batch, num_beams=1, return_dict_in_generate=True, output_logits=True)
    best = torch.stack(output.logits, dim=1).argmax(-1)
    tokens = output.sequences[:, 1:]
    unfinished = (tokens == EOS).cumsum(1) - (tokens == EOS).long() == 0
    assert torch.equal(best[unfinished], tokens[unfinished])


@settings(max_examples=10)
@given(seed=st.integers(0, 999), mode=st.sampled_from(["greedy", "beam", "no repeats", "penalty"]))
def test_batching_does_not_change_a_row(seed, mode):
    model = exact_model(seed, spread=2.0)
    together = generate(model, **MODES[mode])
    for row, length in enumerate(BATCH["attention_mask"].sum(1).tolist()):
        alone = generate(model, batch={"input_ids": BATCH["input_ids"][row : row + 1, :length]}, **MODES[mode])[0]
        assert torch.equal(together[row, : len(alone)], alone)
        assert torch.all(together[row, len(alone) :] == PAD)


@pytest.mark.parametrize("mode", ["sampling", "top k", "top p", "min p", "three samples", "beam sampling"])
def test_sampling_is_deterministic_with_a_seed(model, mode):
    samples = [generate(model, seed, max_new_tokens=10, **MODES[mode]) for seed in (1, 1, 2)]
    assert torch.equal(samples[0], samples[1])
    assert samples[0].shape != samples[2].shape or not torch.equal(samples[0], samples[2])


def test_finished_rows_are_padded():
    """A model whose bias ends the first row at once, while the others continue."""
    model = exact_model(spread=2.0)
    free = generate(model, max_new_tokens=6, eos_token_id=[])
    config = GenerationConfig.from_model_config(model.config)
    config.eos_token_id = free[0, 2].item()  # the first row's second token is now the end token
    ended = generate(model, max_new_tokens=6, generation_config=config)
    stop = (ended[0] == config.eos_token_id).nonzero()[0].item()
    assert stop <= 2
    assert torch.all(ended[0, stop + 1 :] == PAD)
    assert torch.all(ended[:, 0] == BOS)


def test_returned_hypotheses_are_sorted_by_score(model):
    output = generate(
        model, num_beams=4, num_return_sequences=4, return_dict_in_generate=True, output_scores=True, length_penalty=0.6
    )
    scores = output.sequences_scores.view(3, 4)
    assert torch.equal(scores, scores.sort(dim=1, descending=True).values)
    assert len({tuple(row.tolist()) for row in output.sequences[:4]}) == 4


def test_beam_scores_are_sums_of_log_probabilities(model):
    """Recomputed by one forward pass over the finished sequence."""
    output = generate(model, num_beams=4, return_dict_in_generate=True, output_scores=True, length_penalty=1.0)
    sequences = output.sequences
    logits = model(**BATCH, decoder_input_ids=sequences[:, :-1]).logits
    chosen = logits.log_softmax(-1).gather(2, sequences[:, 1:, None])[..., 0]
    counted = sequences[:, 1:] != PAD
    mean = (chosen * counted).sum(1) / counted.sum(1)
    assert_near(output.sequences_scores.double(), mean, 1e-5)  # beam search adds in float32


def test_scores_logits_attentions_and_hidden_states(model):
    model.set_attn_implementation("eager")
    output = generate(
        model,
        num_beams=2,
        return_dict_in_generate=True,
        output_scores=True,
        output_logits=True,
        output_attentions=True,
        output_hidden_states=True,
    )
    model.set_attn_implementation("sdpa")
    steps = len(output.scores)
    assert steps == len(output.logits) == len(output.cross_attentions) == len(output.decoder_hidden_states)
    assert output.scores[0].shape == (6, model.config.vocab_size)
    assert output.cross_attentions[0][0].shape == (6, 2, 1, 8)
    assert output.encoder_attentions[0].shape == (3, 2, 8, 8)
    assert output.decoder_hidden_states[0][0].shape == (6, 1, 16)


def test_transition_scores(model):
    output = generate(model, num_beams=3, return_dict_in_generate=True, output_scores=True, length_penalty=0.0)
    scores = model.compute_transition_scores(output.sequences, output.scores, output.beam_indices)
    assert_near(scores.sum(1).double(), output.sequences_scores.double(), 1e-5)


def test_target_prefix_is_kept(model):
    prefix = torch.tensor([[BOS, 9, 8]]).expand(3, -1)
    for options in ({}, {"num_beams": 3}):
        output = generate(model, decoder_input_ids=prefix, **options)
        assert torch.equal(output[:, :3], prefix)


def test_prefix_allowed_tokens(model):
    allowed = [7, 11, 13, EOS]
    output = generate(model, num_beams=3, prefix_allowed_tokens_fn=lambda *_: allowed)
    assert set(output[:, 1:].flatten().tolist()) <= {*allowed, PAD}


@pytest.mark.parametrize("share_sizes", [True, False])
def test_assisted_decoding_equals_greedy(model, share_sizes):
    assistant = exact_model(seed=3, spread=2.0, **({} if share_sizes else {"decoder_layers": 1, "d_ff": 8}))
    batch = {"input_ids": random_ids(1, 6)}
    expected = generate(model, batch=batch, do_sample=False)
    assert torch.equal(generate(model, batch=batch, do_sample=False, assistant_model=assistant), expected)
    assert torch.equal(generate(model, batch=batch, do_sample=False, prompt_lookup_num_tokens=3), expected)


def test_streaming(capsys):
    tokenizer = RandomTransformerTokenizer.train(["hello world", "hola mundo"] * 20, vocab_size=280)
    model = tiny_model(spread=2.0, vocab_size=len(tokenizer))
    batch = tokenizer("hello world", return_tensors="pt")
    output = generate(model, batch=batch, streamer=TextStreamer(tokenizer, skip_special_tokens=True))
    assert capsys.readouterr().out.rstrip("\n") == tokenizer.decode(output[0], skip_special_tokens=True).rstrip("\n")


def test_stopping_criteria(model):
    criteria = StoppingCriteriaList([lambda ids, *_: torch.full((len(ids),), ids.shape[1] >= 4)])
    assert generate(model, stopping_criteria=criteria).shape[1] == 4


@pytest.mark.parametrize("options", [{}, {"num_beams": 3}])
def test_generation_from_embeddings(model, options):
    embeddings = model.get_input_embeddings()(BATCH["input_ids"])
    batch = {"inputs_embeds": embeddings, "attention_mask": BATCH["attention_mask"]}
    assert torch.equal(generate(model, batch=batch, **options), generate(model, **options))


@pytest.mark.long
@pytest.mark.parametrize("options", [{}, {"num_beams": 3}])
def test_compiled_forward_with_a_static_cache(model, options):
    expected = generate(model, **options)
    forward = model.forward
    try:
        model.forward = torch.compile(forward, fullgraph=True)
        assert torch.equal(generate(model, cache_implementation="static", **options), expected)
    finally:
        model.forward = forward
        torch._dynamo.reset()
