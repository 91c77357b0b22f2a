"""Equality with independent implementations on the same weights: torch.nn.Transformer and MarianMT."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from modeling_random_transformer.extras.conversion import from_marian, from_torch_transformer
from tests.helpers.marian import tiny_marian
from tests.helpers.models import VOCAB_SIZE, padded_batch, random_ids
from tests.helpers.torch_transformer import Original

TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}  # in float64
lengths = st.lists(st.integers(1, 9), min_size=1, max_size=4)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor", "ignore:The PyTorch API of nes")
@given(
    pre_norm=st.booleans(),
    attention=st.sampled_from(["eager", "sdpa"]),
    num_heads=st.sampled_from([1, 2, 4]),
    lengths=lengths,
    target_len=st.integers(1, 7),
)
def test_equals_torch_transformer(pre_norm, attention, num_heads, lengths, target_len):
    original = Original((VOCAB_SIZE,), positions="sinusoidal", nhead=num_heads, norm_first=pre_norm).double()
    if not pre_norm:  # as in the paper
        original.transformer.encoder.norm = original.transformer.decoder.norm = None
    layers = original.transformer, original.source, original.output
    model, _ = from_torch_transformer(*layers, positions="sinusoidal", scale_embedding=True)
    model.set_attn_implementation(attention)
    source, target = padded_batch(lengths), random_ids(len(lengths), target_len, seed=1)
    with torch.no_grad():
        actual = model.double().eval()(**source, decoder_input_ids=target).logits
    torch.testing.assert_close(actual, original(*source.values(), target), **TOLERANCE)


@settings(max_examples=10)
@given(
    num_heads=st.sampled_from([1, 2, 4, 8]),
    layers=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    activation=st.sampled_from(["relu", "swish", "gelu"]),
    scale=st.booleans(),
    lengths=lengths,
    seed=st.integers(0, 99),
)
def test_equals_marian(num_heads, layers, activation, scale, lengths, seed):
    sizes = {f"{stack}_attention_heads": num_heads for stack in ("encoder", "decoder")}
    sizes |= {"encoder_layers": layers[0], "decoder_layers": layers[1]}
    marian = tiny_marian(seed, activation_function=activation, scale_embedding=scale, **sizes).double()
    model = from_marian(marian)[0].double().eval()
    batch, target = padded_batch(lengths, seed), random_ids(len(lengths), 6, seed + 1)
    with torch.no_grad():
        logits = [implementation(**batch, decoder_input_ids=target).logits for implementation in (model, marian)]
    torch.testing.assert_close(*logits, **TOLERANCE)
    assert torch.equal(*(implementation.generate(**batch, max_new_tokens=12) for implementation in (model, marian)))
