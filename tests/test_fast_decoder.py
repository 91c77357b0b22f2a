"""The fast decoder steps of `generate()` against the modules, and when they are disabled."""

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.cache_utils import DynamicLayer

from modeling_random_transformer import decoding_random_transformer as decoding
from modeling_random_transformer import generation_random_transformer as generation
from modeling_random_transformer import ops_random_transformer as ops
from modeling_random_transformer.decoding_random_transformer import BeamKVCache, FastDecoder
from modeling_random_transformer.generation_random_transformer import RandomTransformerGenerationMixin, block_top_k
from tests.helpers.models import (
    assert_same_generation,
    exact_model,
    fixed_scores,
    padded_batch,
    tiny_model,
)

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
    "after a prompt": {"num_beams": 2, "decoder_input_ids": torch.tensor([[1, 5, 6], [1, 7, 8], [1, 9, 4]])},
    "forced first token": {"num_beams": 2, "forced_bos_token_id": 7},
}
BATCH = padded_batch([8, 5, 3])


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


def assert_same_caches(ours, theirs):
    """Equal keys and values, in layers of transformers."""
    for kind in ("self_attention_cache", "cross_attention_cache"):
        layers, expected_layers = getattr(ours, kind).layers, getattr(theirs, kind).layers
        for layer, expected in zip(layers, expected_layers, strict=True):
            assert type(layer) is DynamicLayer
            torch.testing.assert_close(layer.keys, expected.keys)
            torch.testing.assert_close(layer.values, expected.values)


def generate_with_fixed_scores(model, **options):
    """Generate with choices that do not depend on rounding; only the logits are the model's."""
    return generate(model, logits_processor=[fixed_scores], **options)


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("config", CONFIGS)
def test_steps_equal_modules(config, search, disable_fast_decoder, steps, monkeypatch):
    monkeypatch.setattr(decoding, "INITIAL_CAPACITY", 3)  # so that the capacity grows twice
    monkeypatch.setattr(decoding, "COMPACTION_INTERVAL", 3)
    model = exact_model(spread=2.0, **CONFIGS[config])
    ours = generate(model, **SEARCHES[search])
    taken = len(steps)
    disable_fast_decoder()
    theirs = generate(model, **SEARCHES[search])
    assert taken == len(steps) == len(ours.logits) - 1 > 2
    assert_same_generation(ours, theirs)
    assert_same_caches(ours.past_key_values, theirs.past_key_values)


def test_fully_padded_source(disable_fast_decoder):
    model, batch = exact_model(spread=2.0), padded_batch([4, 4])
    batch["attention_mask"][1] = 0
    ours = generate(model, batch)
    disable_fast_decoder()
    assert_same_generation(ours, generate(model, batch))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_fast_steps_in_half_precision_equal_the_modules(dtype, autocast, disable_fast_decoder):
    model = tiny_model() if autocast else tiny_model().to(dtype)
    with torch.autocast("cpu", dtype, enabled=autocast):
        ours = generate_with_fixed_scores(model, num_beams=3)
        disable_fast_decoder()
        assert_same_generation(
            ours, generate_with_fixed_scores(model, num_beams=3), tolerance=8 * torch.finfo(dtype).eps
        )


@pytest.mark.parametrize("search", ["greedy", "beams"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.bfloat16, 2**-4), (torch.float64, 1e-9)])
def test_matmul_attention_equals_fused_attention(dtype, tolerance, search, disable_fast_decoder, monkeypatch):
    """As on CPUs with bfloat16 instructions; also in float64, to compare exactly."""
    monkeypatch.setattr(ops, "MIN_MATMUL_KEY_ELEMENTS", 0)
    monkeypatch.setattr(decoding, "prefers_matmul_for_decoding", lambda *_: True)
    monkeypatch.setattr(ops, "scaled_dot_product_attention", None)
    model = tiny_model().to(dtype)
    ours = generate_with_fixed_scores(model, **SEARCHES[search])
    assert model.fallback_reason() is None
    disable_fast_decoder()
    assert_same_generation(ours, generate_with_fixed_scores(model, **SEARCHES[search]), tolerance)


def test_prefer_matmul_attention_for_decoding(monkeypatch):
    monkeypatch.setattr(ops, "supports_native_matmul", lambda _: True)
    keys = torch.ones(2, 1, 3, 4, dtype=torch.bfloat16)
    mask = decoding.additive_padding_mask(torch.tensor([[1, 1, 0], [1, 1, 1]]), torch.bfloat16)
    hides_all = decoding.additive_padding_mask(torch.tensor([[1, 1, 0], [0, 0, 0]]), torch.bfloat16)
    prefers_matmul = ops.prefers_matmul_for_decoding
    assert prefers_matmul(keys, None)
    assert prefers_matmul(keys, mask)
    assert not prefers_matmul(keys, hides_all)
    assert not prefers_matmul(keys.to("meta"), None)
    monkeypatch.setattr(ops, "supports_native_matmul", lambda _: False)
    assert not prefers_matmul(keys, None)


@settings(deadline=None, max_examples=30)
@given(
    sources=st.integers(1, 3),
    beams=st.integers(1, 4),
    length=st.integers(1, 5),
    kept_beams=st.integers(1, 4),
    interval=st.integers(1, 4),
    seed=st.integers(0, 2**32),
)
def test_beam_kv_cache_equals_copied_caches(sources, beams, length, kept_beams, interval, seed):
    """Any reordering of beams within their sources, against indexing and `cat`, while it grows and is compacted."""
    torch.manual_seed(seed)
    batch = sources * beams
    keys, values = torch.randn(batch, 2, length, 3), torch.randn(batch, 2, length, 4)
    with patch.multiple(decoding, INITIAL_CAPACITY=1, COMPACTION_INTERVAL=interval):
        check_cache(BeamKVCache([(keys, values)], beams), keys, values, kept_beams)


def check_cache(cache, keys, values, kept_beams):
    """Reorder and append; `kept_beams` beams per source continue."""
    beams, sources = cache.beams, cache.groups
    for _ in range(2 * cache.length + 6):
        parents = torch.randint(min(beams, kept_beams), (sources, beams)) + beams * torch.arange(sources)[:, None]
        cache.reorder_cache(parents.flatten())
        if beams > 1:
            keys, values = keys[parents.flatten()], values[parents.flatten()]
        cache.reserve()
        key, value = torch.randn(sources * beams, 2, 3), torch.randn(sources * beams, 2, 4)
        cache.append(0, cache.split_heads(key.flatten(1), 3), cache.split_heads(value.flatten(1), 4))
        cache.advance()
        keys, values = torch.cat([keys, key[:, :, None]], dim=2), torch.cat([values, value[:, :, None]], dim=2)
        torch.testing.assert_close(cache.separate_beams(cache.keys[0]), keys, rtol=0, atol=0)
        torch.testing.assert_close(cache.separate_beams(cache.values[0]), values, rtol=0, atol=0)


def test_entries_without_descendants_are_removed():
    """If one beam of each step is kept, a row has little more than one entry per token."""
    beams, length = 4, 60
    cache = BeamKVCache([(torch.randn(2 * beams, 1, 1, 2),) * 2], beams)
    for _ in range(length - 1):
        cache.reorder_cache(torch.tensor([1, 1, 1, 1, 6, 6, 6, 6]))
        cache.reserve()
        cache.append(0, *[torch.randn(2, 1, beams, 2)] * 2)
        cache.advance()
    assert cache.length == length
    assert cache.entries <= length + beams * (decoding.COMPACTION_INTERVAL + 1)


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
