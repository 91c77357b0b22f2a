"""Invariants: results do not depend on batching, caching, the attention implementation or padding."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from modeling_random_transformer.modeling_random_transformer import check_padding_mask, eager_attention_forward
from modeling_random_transformer.ops_random_transformer import may_omit_mask
from modeling_random_transformer.versions_random_transformer import named_cache
from tests.helpers.models import VOCAB_SIZE, assert_near, exact_model, padded_batch, random_ids, tiny_model

TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}  # in float64
VARIANTS = {
    "post": {},
    "pre": {"norm_order": "pre"},
    "learned": {"position_embedding": "learned"},
    "no positions": {"position_embedding": "none"},
    "free widths": {"d_k": 5, "d_v": 7},
    "separate embeddings": {"share_embeddings": False, "tie_word_embeddings": False, "lm_head_bias": True},
    "concatenated, offset": {"sinusoid_layout": "concatenated", "position_offset": 2},
}
variants = st.sampled_from(sorted(VARIANTS))
lengths = st.lists(st.integers(1, 10), min_size=1, max_size=4)


@given(variant=variants, lengths=lengths, target_len=st.integers(1, 8), visible=st.integers(0, 1))
def test_sdpa_agrees_with_eager(variant, lengths, target_len, visible):
    model = exact_model(**VARIANTS[variant])
    batch = padded_batch(lengths) | {"decoder_input_ids": random_ids(len(lengths), target_len, 1)}
    batch["attention_mask"][-1] *= visible  # the last row may be all padding
    logits = {}
    for implementation in ("eager", "sdpa"):
        model.set_attn_implementation(implementation)
        with torch.no_grad():
            logits[implementation] = model(**batch).logits
    torch.testing.assert_close(logits["sdpa"], logits["eager"], **TOLERANCE)


@pytest.mark.slow
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() not in ("AVX2", "AVX512"),
    reason="flex attention of PyTorch requires AVX2 on a CPU",
)
@pytest.mark.long
def test_flex_attention_agrees_with_eager():
    model = tiny_model(d_model=32)  # flex attention requires d_k of at least 16
    batch = padded_batch([7, 4]) | {"decoder_input_ids": random_ids(2, 5)}
    model.set_attn_implementation("eager")
    with torch.no_grad():
        expected = model(**batch).logits
        model.set_attn_implementation("flex_attention")
        assert_near(model(**batch).logits, expected, 1e-5)


def test_masks_of_flex_attention_are_accepted():
    """`generate()` with a static cache passes them instead of padding masks."""
    mask = create_block_mask(lambda _batch, _head, query, key: query >= key, 2, None, 5, 5, device="cpu")
    check_padding_mask("decoder_attention_mask", mask, 2, 5)
    assert may_omit_mask(mask)


@given(variant=variants, lengths=lengths, target_len=st.integers(1, 8), seed=st.integers(0, 99))
def test_padding_does_not_change_logits(variant, lengths, target_len, seed):
    model = exact_model(seed, **VARIANTS[variant])
    batch = padded_batch(lengths, seed)
    targets = random_ids(len(lengths), target_len, seed + 1)
    with torch.no_grad():
        together = model(**batch, decoder_input_ids=targets).logits
        for row, length in enumerate(lengths):
            alone = model(input_ids=batch["input_ids"][row : row + 1, :length], decoder_input_ids=targets[row, None])
            torch.testing.assert_close(together[row], alone.logits[0], **TOLERANCE)


@given(variant=variants, cuts=st.lists(st.integers(1, 3), min_size=1, max_size=5), seed=st.integers(0, 99))
def test_cached_decoding_equals_uncached(variant, cuts, seed):
    """Holds for any split of the target into steps."""
    model = exact_model(seed, **VARIANTS[variant])
    source = padded_batch([6, 3], seed)
    targets = random_ids(2, sum(cuts), seed + 1)
    cache = EncoderDecoderCache(DynamicCache(), DynamicCache())
    pieces = []
    with torch.no_grad():
        whole = model(**source, decoder_input_ids=targets, use_cache=False).logits
        encoded = model.get_encoder()(**source)
        for piece in targets.split(cuts, dim=1):
            output = model(
                encoder_outputs=encoded,
                attention_mask=source["attention_mask"],
                decoder_input_ids=piece,
                **named_cache(cache),
            )
            pieces.append(output.logits)
    torch.testing.assert_close(torch.cat(pieces, dim=1), whole, **TOLERANCE)


@given(variant=variants, rows_per_source=st.integers(1, 4), attention=st.sampled_from(["eager", "sdpa"]))
def test_rows_sharing_a_source_equal_rows_with_copies(variant, rows_per_source, attention):
    model = exact_model(attn_implementation=attention, **VARIANTS[variant])
    source = padded_batch([6, 3])
    copies = {name: value.repeat_interleave(rows_per_source, dim=0) for name, value in source.items()}
    targets = random_ids(2 * rows_per_source, 5, seed=1)
    options = {"decoder_input_ids": targets, "output_attentions": attention == "eager"}
    with torch.no_grad():
        encoded = model.get_encoder()(**source)
        shared = model(encoder_outputs=encoded, attention_mask=source["attention_mask"], **options)
        copied = model(**copies, **options)
    torch.testing.assert_close(shared.logits, copied.logits, **TOLERANCE)
    if attention == "eager":
        torch.testing.assert_close(shared.cross_attentions, copied.cross_attentions, **TOLERANCE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("variant", ["post", "pre"])
def test_masks_yield_finite_numbers(variant, implementation, dtype):
    """In every precision, also for a row whose source is all padding."""
    model = tiny_model(spread=2.0, attn_implementation=implementation, **VARIANTS[variant]).to(dtype)
    batch = padded_batch([9, 4, 1])
    batch["attention_mask"][2] = 0
    output = model(**batch, labels=random_ids(3, 6))
    assert output.logits.isfinite().all()
    output.loss.backward()
    assert not any(parameter.grad.isnan().any() for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_mask_does_not_overflow_on_large_negative_scores(dtype):
    """-1000 plus float16's minimum is -inf in float16, and the softmax of a row of -inf is NaN."""
    query = torch.full((1, 1, 2, 4), -25.0, dtype=dtype)
    key = torch.full((1, 1, 3, 4), 10.0, dtype=dtype)
    mask = torch.full((1, 1, 2, 3), torch.finfo(dtype).min, dtype=dtype)
    mask[0, 0, 1, 0] = 0.0
    outputs, weights = eager_attention_forward(torch.nn.Identity(), query, key, key, mask, scaling=1.0)
    assert weights.tolist() == [[[[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]]]
    assert outputs[0, :, 0].tolist() == [[0.0] * 4, [10.0] * 4]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
def test_eager_attention_with_a_boolean_mask(dtype):
    """A boolean mask has the effect of one with 0 and the minimum, in every dtype."""
    states = torch.randn(1, 2, 3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    visible = torch.tensor([[True, False, False], [False, False, False], [True, True, False]])[None, None]
    additive = torch.zeros(visible.shape, dtype=dtype).masked_fill(~visible, torch.finfo(dtype).min)
    results = [
        eager_attention_forward(torch.nn.Identity(), states, states, states, mask, scaling=1.0)
        for mask in (visible, additive)
    ]
    for with_boolean, with_additive in zip(*results, strict=True):
        assert torch.equal(with_boolean, with_additive)


IDS, TARGET = random_ids(2, 5), random_ids(2, 4)
INVALID_INPUT = {
    "id too large": ({"input_ids": IDS + VOCAB_SIZE}, r"input_ids .* 0 to 60, got ids from"),
    "target id too large": ({"decoder_input_ids": TARGET + VOCAB_SIZE}, r"decoder_input_ids .* 0 to 60"),
    "no source": ({"input_ids": None}, r"exactly one of input_ids and inputs_embeds .* neither"),
    "source twice": ({"inputs_embeds": torch.zeros(2, 5, 16)}, r"exactly one of input_ids and inputs_embeds .* both"),
    "no target": ({"decoder_input_ids": None}, r"exactly one of decoder_input_ids and .* neither"),
    "flat source": ({"input_ids": IDS[0]}, r"input_ids must have shape \[batch, length\], got \[5\]"),
    "narrow embeddings": (
        {"input_ids": None, "inputs_embeds": torch.zeros(2, 5, 8)},
        r"inputs_embeds must have shape \[batch, length, 16\], got \[2, 5, 8\]",
    ),
    "short mask": ({"attention_mask": torch.ones(2, 4)}, r"attention_mask must have shape \[2, 5\], got \[2, 4\]"),
    "rows that do not match": (
        {"decoder_input_ids": random_ids(3, 4)},
        r"decoder_input_ids .* multiple .* 2 rows, got 3",
    ),
    "label too large": ({"labels": TARGET + VOCAB_SIZE}, r"labels .* 0 to 60"),
    "ids that are no integers": ({"input_ids": IDS.float()}, r"input_ids must be integers, got torch.float32"),
    "empty target": ({"decoder_input_ids": TARGET[:, :0]}, r"decoder_input_ids must have shape .* got \[2, 0\]"),
    "short target mask": ({"decoder_attention_mask": torch.ones(2, 3)}, r"decoder_attention_mask .* \[2, 4\], got"),
    "narrow encoder outputs": (
        {"encoder_outputs": (torch.zeros(2, 5, 8),)},
        r"encoder_outputs must have shape \[batch, length, 16\], got \[2, 5, 8\]",
    ),
    "no encoder states": ({"encoder_outputs": (None,)}, "encoder_outputs must be a ModelOutput .* got tuple"),
    "no encoder outputs": ({"encoder_outputs": {}}, "encoder_outputs must be a ModelOutput .* got dict"),
    "a tensor": ({"encoder_outputs": torch.zeros(2, 5, 16)}, "encoder_outputs must be a ModelOutput .* got Tensor"),
    "labels of another length": ({"labels": random_ids(2, 5)}, r"labels must have shape \[2, 4\], got \[2, 5\]"),
}


@pytest.mark.parametrize("case", INVALID_INPUT)
def test_invalid_input_raises(case):
    changes, message = INVALID_INPUT[case]
    with pytest.raises(ValueError, match=message):
        tiny_model()(**({"input_ids": IDS, "decoder_input_ids": TARGET} | changes))


def test_learned_positions_are_limited_and_sinusoids_are_not():
    long = random_ids(1, 70)
    with pytest.raises(ValueError, match="max_position_embeddings=64, got 70"):
        tiny_model(position_embedding="learned")(input_ids=long, decoder_input_ids=TARGET[:1])
    short_table, long_table = tiny_model(), tiny_model(max_position_embeddings=128)
    with torch.no_grad():
        logits = [model(input_ids=long, decoder_input_ids=long).logits for model in (short_table, long_table)]
    torch.testing.assert_close(*logits, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_training_uses_eager_attention(dtype, monkeypatch):
    """The fused kernel's backward pass is slow on a CPU; eager attention replaces it with the same masks."""
    model = tiny_model().to(dtype).train()
    for target_mask in (None, torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])):
        inputs = {**padded_batch([5, 3]), "decoder_input_ids": TARGET, "decoder_attention_mask": target_mask}
        logits = {}
        for implementation in ("eager", "sdpa"):
            model.set_attn_implementation(implementation)
            with monkeypatch.context() as patch:
                patch.setattr(torch.nn.functional, "scaled_dot_product_attention", None)  # not to be called
                logits[implementation] = model(**inputs).logits
        torch.testing.assert_close(logits["sdpa"], logits["eager"], rtol=0, atol=0)
        with torch.no_grad():  # by the fused kernel
            assert_near(model(**inputs).logits, logits["eager"], 8 * torch.finfo(dtype).eps)
