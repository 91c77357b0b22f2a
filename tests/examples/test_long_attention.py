"""Local, strided, linear and low-rank attention: against formulas with all weights, and inside of models."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, masking_utils

from modeling_random_transformer.modeling_random_transformer import eager_attention_forward
from tests.helpers.models import assert_near, exact_model, padded_batch, random_ids
from tutorials import long_attention

SPAN, SCALING = 4, 0.4
IMPLEMENTATIONS = ["local_attention", "strided_attention", "linear_attention", "three_segments"]
long_attention.register("three_segments", long_attention.low_rank_attention, rank=3)
# Query and key lengths: without a cache, around multiples of the span and the chunk; decoding with a cache.
LENGTHS = [(1, 1), (4, 4), (13, 13), (130, 130), (1, 13), (5, 40), (7, 150)]
CASES = [(False, length, length) for length, key_length in LENGTHS if length == key_length]
CASES += [(True, *lengths) for lengths in LENGTHS]


def states(query_len: int, key_len: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Queries, keys and values of four heads, and the mask of three rows: no padding, padding at the end, only padding.

    The second row is padded in front if there is one query, as in a batch of a decoder without an encoder.
    """
    query, key = torch.randn(3, 4, query_len, 6).double(), torch.randn(3, 4, key_len, 6).double()
    mask = torch.ones(3, key_len, dtype=torch.bool)
    mask[1, -(key_len // 3) :] = key_len < 3
    if query_len == 1:
        mask[1] = mask[1].flip(0)
    mask[2] = False
    return query, key, torch.randn(3, 4, key_len, 5).double(), mask


def eager(query: Tensor, key: Tensor, value: Tensor, visible: Tensor) -> Tensor:
    """The reference with a boolean mask, `[batch, heads, query_len, key_len]`."""
    mask = torch.zeros((), dtype=torch.float64).masked_fill(~visible, torch.finfo(torch.float64).min)
    module = torch.nn.Identity().eval()
    return eager_attention_forward(module, query, key, value, mask, SCALING)[0]


def distances(query_len: int, key_len: int) -> Tensor:
    """Position of the query minus position of the key, `[query_len, key_len]`."""
    return torch.arange(key_len - query_len, key_len)[:, None] - torch.arange(key_len)


def attend(name: str, is_causal: bool, *inputs: Tensor, **options: int) -> Tensor:
    module = SimpleNamespace(is_causal=is_causal)
    outputs, weights = getattr(long_attention, name)(module, *inputs, scaling=SCALING, **options)
    assert weights is None
    return outputs


@pytest.mark.parametrize("name", ["local_attention", "strided_attention"])
@pytest.mark.parametrize(("is_causal", "query_len", "key_len"), CASES)
def test_sparse_attention_is_eager_attention_with_masks(name, is_causal, query_len, key_len):
    query, key, value, mask = states(query_len, key_len)
    distance = distances(query_len, key_len)
    patterns, options = distance.abs() <= SPAN, {"window": SPAN}
    if name == "strided_attention":  # another pattern in two of the four heads
        patterns = torch.stack([patterns, distance % SPAN == 0]).repeat_interleave(2, dim=0)
        options = {"stride": SPAN}
    visible = ((distance >= 0) | (not is_causal)) & patterns & mask[:, None, None]
    expected = eager(query, key, value, visible)
    assert_near(attend(name, is_causal, query, key, value, mask, **options), expected, 1e-12)


@pytest.mark.parametrize(("is_causal", "query_len", "key_len"), CASES)
def test_linear_attention_is_the_formula_of_its_kernel(is_causal, query_len, key_len):
    query, key, value, mask = states(query_len, key_len)
    directions = long_attention.random_directions(6, 32)

    def kernel(x: Tensor) -> Tensor:
        return (x @ directions - x.square().sum(dim=-1, keepdim=True) / 2).exp()

    weights = kernel(query * SCALING**0.5) @ kernel(key * SCALING**0.5).transpose(2, 3)
    visible = ((distances(query_len, key_len) >= 0) | (not is_causal)) & mask[:, None, None]
    weights = weights.masked_fill(~visible, 0)
    weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-300)
    expected = (weights @ value).transpose(1, 2)
    assert_near(attend("linear_attention", is_causal, query, key, value, mask, features=32), expected, 1e-12)


@pytest.mark.parametrize("rank", [1, 6, 27, 40, 64])
def test_low_rank_attention_to_segments_of_equal_keys_is_softmax_attention(rank):
    """Each segment counts as often as it has tokens. The second row has 27 tokens, the third none."""
    query, key, value, mask = states(40, 40)
    segments = long_attention.segments_of(mask, rank).double()
    for row, tokens in enumerate((40, 27)):
        sizes = segments[row, 0].sum(dim=1)
        assert sizes.sum() == tokens
        assert (sizes > 0).sum() == min(rank, tokens)
        assert sizes.max() - sizes[sizes > 0].min() <= 1
    key, value = (segments.transpose(2, 3) @ torch.randn(3, 4, rank, width).double() for width in (6, 5))
    expected = eager(query, key, value, mask[:, None, None].expand(-1, 1, 40, -1))
    actual = attend("low_rank_attention", False, query, key, value, mask, rank=rank)
    assert_near(actual[:2], expected[:2], 1e-12)
    assert actual.isfinite().all()


@pytest.mark.parametrize(("query_len", "key_len"), LENGTHS)
def test_causal_low_rank_attention_is_softmax_attention(query_len, key_len):
    query, key, value, mask = states(query_len, key_len)
    expected = eager(query, key, value, (distances(query_len, key_len) >= 0) & mask[:, None, None])
    actual = attend("low_rank_attention", True, query, key, value, mask, rank=3)
    assert_near(actual[:2], expected[:2], 1e-12)


def test_linear_attention_approximates_softmax_attention():
    query, key, value = torch.randn(3, 1, 2, 50, 8).double() / 2
    mask = torch.ones(1, 50, dtype=torch.bool)
    expected = eager(query, key, value, mask)
    few, many = (attend("linear_attention", False, query, key, value, mask, features=n) - expected for n in (8, 20000))
    assert many.norm() < 0.2 * expected.norm() < few.norm()


def test_random_directions_are_orthogonal_in_groups():
    directions = long_attention.random_directions(6, 15)
    assert directions.shape == (6, 15)
    for group in directions.split(6, dim=1):
        products = group.T @ group
        assert_near(products, torch.diag(products.diagonal()), 1e-12)


# Models


@pytest.fixture(params=IMPLEMENTATIONS)
def model(request):
    model = exact_model(spread=1.5)
    model.set_attn_implementation(request.param)
    return model


@pytest.mark.parametrize("name", ["local_attention", "low_rank_attention"])
def test_wide_windows_and_high_ranks_equal_softmax_attention(name):
    """Also for padded rows, and for cross-attention, which remains SDPA. Window and rank are above the length."""
    model = exact_model(spread=1.5)
    batch = padded_batch([9, 6]) | {"decoder_input_ids": random_ids(2, 7, seed=1)}
    expected = model(**batch).logits
    model.set_attn_implementation(name)
    assert_near(model(**batch).logits, expected, 1e-9)


def test_batch_does_not_change_a_row(model):
    target = random_ids(2, 7, seed=1)
    logits = model(**padded_batch([9, 6]), decoder_input_ids=target).logits
    alone = {name: values[1:, :6] for name, values in padded_batch([9, 6]).items()}
    assert_near(model(**alone, decoder_input_ids=target[1:]).logits, logits[1:], 1e-9)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_cached_generation_equals_uncached_generation(model, num_beams):
    batch = padded_batch([9, 6])
    options = {"num_beams": num_beams, "max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}
    expected = model.generate(**batch, **options, use_cache=False)
    assert torch.equal(model.generate(**batch, **options), expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_decoder_with_padding_in_front(implementation):
    model = AutoModelForCausalLM.from_config(exact_model().config).double().eval()
    model.set_attn_implementation(implementation)
    ids = random_ids(1, 6)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], dim=1)
    mask = (torch.arange(9) >= 3).long()[None]
    assert_near(model(input_ids=padded, attention_mask=mask).logits[:, 3:], model(input_ids=ids).logits, 1e-9)


def test_gradients_are_finite_and_change_the_queries(model):
    model.train()
    batch = padded_batch([9, 6])
    model(**batch, labels=random_ids(2, 7)).loss.backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    assert model.model.encoder.layers[0].self_attn.q_proj.weight.grad.abs().max() > 0


# Invalid input


@pytest.mark.parametrize(
    ("name", "config", "options", "message"),
    [
        ("local_attention", {}, {"attention_mask": torch.ones(1, 1, 5, 5)}, r"shape \[1, 5\], got \[1, 1, 5, 5\]"),
        (
            "linear_attention",
            {"attention_dropout": 0.1},
            {},
            "attention_dropout must be 0 for linear attention",
        ),
        ("strided_attention", {"num_heads": 1}, {}, "num_heads must be at least 2 for strided attention"),
    ],
)
def test_invalid_inputs(name, config, options, message):
    model = exact_model(**config).train()
    model.set_attn_implementation(name)
    with pytest.raises(ValueError, match=message):
        model(input_ids=random_ids(1, 5), labels=random_ids(1, 5), **options)


def test_masks_of_other_patterns_and_static_caches_are_rejected(model):
    with pytest.raises(ValueError, match="the mask must be causal or bidirectional"):
        long_attention.padding_mask(1, 5, 5, mask_function=masking_utils.sliding_window_causal_mask_function(3))
    with pytest.raises(ValueError, match="cache_implementation must be 'dynamic'"):
        model.generate(random_ids(1, 5), cache_implementation="static", max_new_tokens=3)
