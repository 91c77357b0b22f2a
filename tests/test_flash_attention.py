"""flash_attention_2 without a GPU: transformers' code path with CUDA kernels replaced by a reference."""

import pytest
import torch
import transformers.modeling_flash_attention_utils as flash
from torch import Tensor

from tests.helpers.models import exact_model, padded_batch, random_ids, tiny_model


def flash_attn_func(q: Tensor, k: Tensor, v: Tensor, dropout_p=0.0, softmax_scale=None, causal=False) -> Tensor:  # noqa: ARG001
    """flash-attn's documented interface: `[batch, length, heads, width]`, causal mask aligned to the last key."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * softmax_scale
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(k.shape[1] - q.shape[1] + 1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)


def flash_attn_varlen_func(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, softmax_scale=None, causal=False, **_
) -> Tensor:
    """The same for packed sequences, `[tokens, heads, width]`."""
    queries = q.split(cu_seqlens_q.diff().tolist())
    keys, values = (states.split(cu_seqlens_k.diff().tolist()) for states in (k, v))
    rows = zip(queries, keys, values, strict=True)
    return torch.cat([flash_attn_func(*(x[None] for x in row), 0.0, softmax_scale, causal)[0] for row in rows])


@pytest.fixture
def model(monkeypatch):
    kernels = (flash_attn_func, flash_attn_varlen_func, None, flash._pad_input, flash._unpad_input)
    monkeypatch.setattr(flash, "_lazy_imports", lambda *_, **__: kernels)
    monkeypatch.setattr(flash, "_loaded_implementation", None)
    model = exact_model(spread=1.5)
    # Not with set_attn_implementation, which requires the CUDA package.
    model.config._attn_implementation_internal = "flash_attention_2"
    return model


@pytest.mark.parametrize("lengths", [[7, 7], [5, 5, 2, 1]])
@pytest.mark.parametrize("target_len", [1, 5, 7])
def test_flash_attention_agrees_with_eager(model, lengths, target_len):
    """Target lengths equal to the source's or different, with and without padding."""
    batch = padded_batch(lengths) | {"decoder_input_ids": random_ids(len(lengths), target_len, seed=1)}
    actual = model(**batch).logits
    model.set_attn_implementation("eager")
    torch.testing.assert_close(actual, model(**batch).logits, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"num_beams": 3, "num_return_sequences": 2}])
def test_flash_attention_generates_the_same_tokens_as_eager(model, options):
    batch = padded_batch([7, 4, 1])
    actual = model.generate(**batch, max_new_tokens=10, **options)
    model.set_attn_implementation("eager")
    assert torch.equal(actual, model.generate(**batch, max_new_tokens=10, **options))


def test_different_widths_of_keys_and_values_are_an_error():
    with pytest.raises(ValueError, match="d_k=5, d_v=7"):
        tiny_model(d_k=5, d_v=7).set_attn_implementation("flash_attention_2")
