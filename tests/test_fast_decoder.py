"""The fast decoder steps of `generate()` against the modules, and when they are disabled."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import GenerationConfig, GenerationMixin
from transformers.cache_utils import DynamicLayer
from transformers.generation import MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor

from modeling_random_transformer import generation_random_transformer as generation
from modeling_random_transformer import ops_random_transformer as ops
from modeling_random_transformer.generation_random_transformer import (
    BeamKVCache,
    FastDecoder,
    FastEosCriteria,
    InPlaceMinLengthLogitsProcessor,
    RandomTransformerGenerationMixin,
    block_top_k,
)
from tests.helpers.models import EOS, assert_near, fixed_scores, padded_batch, tiny_model

CONFIGS = {
    "post-norm": {},
    "pre-norm": {"norm_order": "pre"},
    "widths": {"d_k": 5, "d_v": 3},
    "no biases": {"attention_bias": False},
    "learned positions": {"position_embedding": "learned", "position_offset": 2},
    "no positions": {"position_embedding": "none"},
    "gelu, unscaled": {"activation_function": "gelu", "scale_embedding": False, "attention_scale": 0.3},
    "two vocabularies": {"share_embeddings": False, "tie_word_embeddings": False, "lm_head_bias": True},
    "one final norm": {"final_layer_norm": True},
}
SEARCHES = {
    "greedy": {},
    "three samples": {"do_sample": True, "num_return_sequences": 3},
    "beams": {"num_beams": 3},
    "all beams, long": {"num_beams": 3, "num_return_sequences": 3, "length_penalty": 2.0},
    "sampled beams": {"num_beams": 2, "do_sample": True},
}
BATCH = padded_batch([8, 5, 3])


def exact_model(**overrides):
    """In float64, so that rounding does not hide errors."""
    return tiny_model(spread=2.0, **overrides).double()


def generate(model, batch=BATCH, **options):
    torch.manual_seed(0)
    wanted = {"return_dict_in_generate": True, "output_logits": True, "max_new_tokens": 14}
    return model.generate(**batch, **wanted | options)


@pytest.fixture
def disable_fast_decoder(monkeypatch):
    """Call it to run the modules at each step from then on."""
    return lambda: monkeypatch.setattr(RandomTransformerGenerationMixin, "fallback_reason", lambda _: "test")


@pytest.fixture
def steps(monkeypatch):
    """Counts the steps that a `FastDecoder` takes, without comparing them with the modules first."""
    taken, step = [], FastDecoder.__call__
    monkeypatch.setattr(FastDecoder, "__call__", lambda self, *inputs: taken.append(1) or step(self, *inputs))
    monkeypatch.setattr(generation, "step_difference", lambda _: None)
    return taken


def assert_same(ours, theirs, tolerance=1e-9):
    assert torch.equal(ours.sequences, theirs.sequences)
    for mine, other in zip(ours.logits, theirs.logits, strict=True):
        assert_near(mine, other, tolerance)


def generate_with_fixed_scores(model, **options):
    """Generate with choices that do not depend on rounding; only the logits are the model's."""
    return generate(model, logits_processor=[fixed_scores], **options)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("config", CONFIGS)
def test_steps_equal_modules(config, search, disable_fast_decoder, steps, monkeypatch):
    monkeypatch.setattr(generation, "INITIAL_CAPACITY", 3)  # so that the capacity grows twice
    monkeypatch.setattr(generation, "COMPACTION_INTERVAL", 3)
    model = exact_model(**CONFIGS[config])
    ours = generate(model, **SEARCHES[search])
    taken = len(steps)
    disable_fast_decoder()
    theirs = generate(model, **SEARCHES[search])
    assert taken == len(steps) == len(ours.logits) - 1 > 2
    assert_same(ours, theirs)
    for kind in ("self_attention_cache", "cross_attention_cache"):
        mine, others = getattr(ours.past_key_values, kind).layers, getattr(theirs.past_key_values, kind).layers
        for layer, other in zip(mine, others, strict=True):
            assert type(layer) is DynamicLayer
            torch.testing.assert_close(layer.keys, other.keys)
            torch.testing.assert_close(layer.values, other.values)


def test_returned_cache_continues_generation(disable_fast_decoder):
    model = exact_model()
    first = generate(model, max_new_tokens=5, eos_token_id=-1)
    more = {"decoder_input_ids": first.sequences, "past_key_values": first.past_key_values, "eos_token_id": -1}
    more["decoder_attention_mask"] = torch.ones_like(first.sequences)
    disable_fast_decoder()
    whole = generate(model, max_new_tokens=9, eos_token_id=-1)
    assert torch.equal(generate(model, max_new_tokens=4, **more).sequences, whole.sequences)


def test_fully_padded_source(disable_fast_decoder):
    model, batch = exact_model(), padded_batch([4, 4])
    batch["attention_mask"][1] = 0
    ours = generate(model, batch)
    disable_fast_decoder()
    assert_same(ours, generate(model, batch))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype, disable_fast_decoder):
    model = tiny_model().to(dtype)
    ours = generate_with_fixed_scores(model, num_beams=3)
    disable_fast_decoder()
    assert_same(ours, generate_with_fixed_scores(model, num_beams=3), tolerance=8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("search", ["greedy", "beams"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2**-4), (torch.float64, 1e-9)])
def test_matmul_attention_equals_fused_attention(dtype, tolerance, search, disable_fast_decoder, monkeypatch):
    """As on CPUs with bfloat16 instructions; also in float64, to compare exactly."""
    monkeypatch.setattr(ops, "MIN_MATMUL_KEY_ELEMENTS", 0)
    monkeypatch.setattr(generation, "prefer_matmul_attention_for_decoding", lambda *_: True)
    monkeypatch.setattr(ops, "fused_attention", None)
    model = tiny_model().to(dtype)
    ours = generate_with_fixed_scores(model, **SEARCHES[search])
    disable_fast_decoder()
    assert_same(ours, generate_with_fixed_scores(model, **SEARCHES[search]), tolerance)


def test_prefer_matmul_attention_for_decoding(monkeypatch):
    monkeypatch.setattr(ops, "supports_native_matmul", lambda _: True)
    keys = torch.ones(2, 1, 3, 4, dtype=torch.bfloat16)
    mask = generation.additive_padding_mask(torch.tensor([[1, 1, 0], [1, 1, 1]]), torch.bfloat16)
    hides_all = generation.additive_padding_mask(torch.tensor([[1, 1, 0], [0, 0, 0]]), torch.bfloat16)
    slow = ops.prefer_matmul_attention_for_decoding
    assert slow(keys, None)
    assert slow(keys, mask)
    assert not slow(keys, hides_all)
    assert not slow(keys.to("meta"), None)
    monkeypatch.setattr(ops, "supports_native_matmul", lambda _: False)
    assert not slow(keys, None)


def test_autocast(disable_fast_decoder):
    model = tiny_model()
    with torch.autocast("cpu", torch.bfloat16):
        ours = generate_with_fixed_scores(model)
        disable_fast_decoder()
        assert_same(ours, generate_with_fixed_scores(model), tolerance=2**-4)


def test_modules_process_the_prompt(disable_fast_decoder, steps):
    prompt = {"decoder_input_ids": torch.tensor([[1, 5, 6], [1, 7, 8], [1, 9, 4]])}
    model = exact_model()
    ours = generate(model, num_beams=2, **prompt)
    assert steps
    disable_fast_decoder()
    assert_same(ours, generate(model, num_beams=2, **prompt))


def test_changed_weights_are_used(disable_fast_decoder):
    model = exact_model()
    generate(model)
    with torch.no_grad():
        model.model.decoder.layers[0].fc1.weight.mul_(3)
    ours = generate(model)
    disable_fast_decoder()
    assert_same(ours, generate(model))


@pytest.mark.parametrize("search", ["greedy", "beams"])
@pytest.mark.parametrize("least", [{"min_new_tokens": 9}, {"min_length": 6}, {"min_length": 4, "min_new_tokens": 7}])
def test_min_lengths(least, search, monkeypatch):
    model = exact_model()
    probable = generate(model).sequences[:, 1:4].flatten().tolist()  # tokens that end the target early
    options = SEARCHES[search] | least | {"eos_token_id": probable, "output_logits": False, "output_scores": True}
    ours = generate(model, **options)
    monkeypatch.setattr(generation, "MIN_LENGTH_PROCESSORS", ())
    theirs = generate(model, **options)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert all(torch.equal(a, b) for a, b in zip(ours.scores, theirs.scores, strict=True))


@pytest.mark.parametrize("search", ["greedy", "beams"])
def test_each_min_length_has_its_own_end_tokens(search, monkeypatch):
    """A logits processor of the caller with another end token, in addition to those of the configuration."""
    model = exact_model()
    probable = generate(model).sequences[:, 1:5].flatten().unique().tolist()
    options = SEARCHES[search] | {"eos_token_id": probable[:-1], "output_logits": False, "output_scores": True}
    options |= {"min_new_tokens": 5, "logits_processor": [MinLengthLogitsProcessor(6, probable[-1])]}
    ours = generate(model, **options)
    for scores in ours.scores[:5]:
        assert scores[:, probable].isneginf().all()
    monkeypatch.setattr(generation, "MIN_LENGTH_PROCESSORS", ())
    theirs = generate(model, **options)
    assert torch.equal(ours.sequences, theirs.sequences)
    assert all(torch.equal(a, b) for a, b in zip(ours.scores, theirs.scores, strict=True))


def test_raw_logits_are_unchanged():
    raw = generate(exact_model(), min_new_tokens=5).logits
    assert all(logits.isfinite().all() for logits in raw)


def test_end_token_outside_the_vocabulary_is_ignored():
    processor = MinNewTokensLengthLogitsProcessor(1, 3, torch.tensor([2, 99]))
    scores = InPlaceMinLengthLogitsProcessor(processor, 10)(torch.ones(2, 3), torch.zeros(2, 10))
    assert scores.isneginf().nonzero().tolist() == [[0, 2], [1, 2]]


def test_eos_criteria():
    criterion = FastEosCriteria(torch.tensor([EOS, 7]))
    assert criterion(torch.tensor([[7, 3], [3, 7], [EOS, EOS]]), None).tolist() == [False, True, True]
    assert criterion(torch.tensor([[7, 3], [3, 4]]), None, new_token_length=2).tolist() == [True, False]


@settings(deadline=None, max_examples=30)
@given(
    sources=st.integers(1, 3),
    beams=st.integers(1, 4),
    length=st.integers(1, 5),
    survivors=st.integers(1, 4),
    interval=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_beam_kv_cache_equals_copied_caches(sources, beams, length, survivors, interval, seed):
    """Any reordering of beams within their sources, against indexing and `cat`, while it grows and is compacted."""
    torch.manual_seed(seed)
    batch = sources * beams
    keys, values = torch.randn(batch, 2, length, 3), torch.randn(batch, 2, length, 4)
    with patch.multiple(generation, INITIAL_CAPACITY=1, COMPACTION_INTERVAL=interval):
        check_cache(BeamKVCache([(keys, values)], beams, limit=50), keys, values, survivors)


def check_cache(cache, keys, values, survivors):
    """Reorder and append; `survivors` beams per source continue."""
    beams, sources = cache.beams, cache.groups
    for _ in range(2 * cache.length + 6):
        parents = torch.randint(min(beams, survivors), (sources, beams)) + beams * torch.arange(sources)[:, None]
        cache.reorder_cache(parents.flatten())
        if beams > 1:
            keys, values = keys[parents.flatten()], values[parents.flatten()]
        cache.reserve()
        key, value = torch.randn(sources * beams, 2, 3), torch.randn(sources * beams, 2, 4)
        cache.append(0, cache.split_heads(key.flatten(1), 3), cache.split_heads(value.flatten(1), 4))
        cache.advance()
        keys, values = torch.cat([keys, key[:, :, None]], dim=2), torch.cat([values, value[:, :, None]], dim=2)
        torch.testing.assert_close(cache.unpack(cache.keys[0]), keys, rtol=0, atol=0)
        torch.testing.assert_close(cache.unpack(cache.values[0]), values, rtol=0, atol=0)


def test_entries_without_descendants_are_removed():
    """If one beam survives each step, a row keeps little more than one entry per token."""
    beams, length = 4, 60
    cache = BeamKVCache([(torch.randn(2 * beams, 1, 1, 2),) * 2], beams, limit=length)
    for _ in range(length - 1):
        cache.reorder_cache(torch.tensor([1, 1, 1, 1, 6, 6, 6, 6]))
        cache.reserve()
        cache.append(0, *[torch.randn(2, 1, beams, 2)] * 2)
        cache.advance()
    assert cache.length == length
    assert cache.entries <= length + beams * (generation.COMPACTION_INTERVAL + 1)


SCORES = {
    "random": lambda shape: torch.randn(shape),
    "a few values, many of them equal": lambda shape: torch.randint(5, shape).float(),
    "equal at the boundary": lambda shape: torch.arange(shape[1]).div(2, rounding_mode="floor").float().expand(shape),
    "mostly -inf": lambda shape: torch.randn(shape).masked_fill(torch.rand(shape) > 0.01, -torch.inf),
    "all -inf": lambda shape: torch.full(shape, -torch.inf),
    "NaN": lambda shape: torch.randn(shape).masked_fill(torch.rand(shape) > 0.99, torch.nan),
    "-1e9 for all beams but one": lambda shape: torch.randn(shape) - 1e9 * (torch.arange(shape[1]) >= shape[1] // 4),
    "highest at the end": lambda shape: torch.arange(shape[1]).float().expand(shape),
}


@pytest.mark.parametrize("scores", SCORES)
@pytest.mark.parametrize("shape", [(1, 997), (3, 1024), (2, 4001)])
@pytest.mark.parametrize("k", [1, 4, 9])
def test_block_top_k_equals_topk(shape, k, scores, monkeypatch):
    """Also which of several equal scores are selected, and in which order."""
    monkeypatch.setattr(generation, "MIN_BLOCK_TOP_K", 0)
    monkeypatch.setattr(generation, "TOP_K_BLOCK", 16)
    torch.manual_seed(0)
    values = SCORES[scores](shape)
    for ours, theirs in zip(block_top_k(values, k), values.topk(k), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0, equal_nan=True)


@pytest.fixture
def library_search(monkeypatch):
    """Call it to use transformers' methods of beam search from then on."""

    def use():
        for name in ("_gather_beams", "_get_top_k_continuations"):
            monkeypatch.setattr(RandomTransformerGenerationMixin, name, vars(GenerationMixin)[name])

    return use


def best_tokens_equal(ids, scores):
    """A logits processor: two tokens that follow from the last one have the same, highest score."""
    best = torch.stack([ids[:, -1] * 7 % scores.shape[1], ids[:, -1] * 5 % scores.shape[1]], dim=1)
    return scores.scatter(1, best, -0.5)


BEAM_SEARCHES = {
    "beams": {},
    "all beams": {"num_return_sequences": 4},
    "long": {"length_penalty": 2.0, "num_return_sequences": 2},
    "short": {"length_penalty": -1.0},
    "early": {"early_stopping": True, "num_return_sequences": 4},
    "never early": {"early_stopping": "never", "num_return_sequences": 4},
    "two end tokens": {"eos_token_id": [EOS, 9], "num_return_sequences": 4},
    "no end token": {"eos_token_id": -1},
    "sampled beams": {"do_sample": True, "num_return_sequences": 2},
    "equal scores": {"logits_processor": [best_tokens_equal], "num_return_sequences": 4},
    "few tokens allowed": {"prefix_allowed_tokens_fn": lambda *_: [7, 11, EOS], "num_return_sequences": 4},
    "one token allowed": {"prefix_allowed_tokens_fn": lambda *_: [7], "num_return_sequences": 4},
    "no repeats": {"no_repeat_ngram_size": 2},
    "min length": {"min_new_tokens": 6},
    "stopping criterion": {"stopping_criteria": [lambda ids, *_: ids[:, -1] % 3 == 0], "num_return_sequences": 4},
}


@pytest.mark.parametrize("search", BEAM_SEARCHES)
def test_beam_search_equals_the_library(search, library_search, monkeypatch):
    monkeypatch.setattr(generation, "MIN_BLOCK_TOP_K", 0)
    monkeypatch.setattr(generation, "TOP_K_BLOCK", 4)
    selected, top_k = [], generation.block_top_k
    monkeypatch.setattr(generation, "block_top_k", lambda *inputs: selected.append(1) or top_k(*inputs))
    model = exact_model(vocab_size=200)
    options = {"num_beams": 4, "output_scores": True, "max_new_tokens": 9} | BEAM_SEARCHES[search]
    ours = generate(model, **options)
    assert bool(selected) == (not options.get("do_sample"))
    library_search()
    selected.clear()
    theirs = generate(model, **options)
    assert not selected
    for name in ("sequences", "sequences_scores", "beam_indices"):
        assert torch.equal(getattr(ours, name), getattr(theirs, name))
    for mine, other in zip(ours.scores, theirs.scores, strict=True):
        assert torch.equal(mine, other)


def test_generation_config_is_unchanged():
    model = tiny_model()
    before = model.generation_config.to_dict()
    generate(model, generation_config=GenerationConfig(min_new_tokens=2, max_new_tokens=4))
    assert model.generation_config.to_dict() == before
