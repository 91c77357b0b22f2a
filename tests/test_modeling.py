"""The model: positions, initialization, dropout, loss, inputs and outputs, and transformers' features."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import AutoModelForSeq2SeqLM
from transformers.modeling_outputs import BaseModelOutputWithPooling, Seq2SeqModelOutput

from modeling_random_transformer import RandomTransformerForConditionalGeneration
from modeling_random_transformer import modeling_random_transformer as modeling
from modeling_random_transformer.modeling_random_transformer import sinusoids
from tests.helpers.models import (
    BOS,
    PAD,
    VOCAB_SIZE,
    assert_near,
    enable_checkpointing,
    padded_batch,
    random_ids,
    tiny_config,
    tiny_model,
)

SOURCE, TARGET = random_ids(2, 7), random_ids(2, 5, seed=1)


# Positions (paper 3.5)


@given(st.integers(0, 20000), st.integers(1, 32).map(lambda half: 2 * half))
def test_sinusoids_equal_the_formula(position, d_model):
    encoding = sinusoids(torch.tensor([position]), d_model)[0]
    for i in range(d_model // 2):
        angle = position / 10000 ** (2 * i / d_model)
        # 1e-7 is half of float32's last digit, plus the rounding of an angle of up to 20,000 in float64
        assert encoding[2 * i].item() == pytest.approx(math.sin(angle), abs=1e-7)
        assert encoding[2 * i + 1].item() == pytest.approx(math.cos(angle), abs=1e-7)
    assert encoding.dtype == torch.float32


def test_layout_and_offset_of_sinusoids():
    interleaved, concatenated = sinusoids(torch.arange(9), 6), sinusoids(torch.arange(9), 6, "concatenated")
    assert torch.equal(concatenated, torch.cat([interleaved[:, 0::2], interleaved[:, 1::2]], dim=1))
    plain, offset = (tiny_model(position_offset=offset).model.encoder.embed_positions for offset in (0, 2))
    assert torch.equal(offset(torch.arange(5), 5), plain(torch.arange(2, 7), 7))


# Shapes, names and initialization


def test_state_dict_names():
    names = set(tiny_model(encoder_layers=1, decoder_layers=1, tie_word_embeddings=False).state_dict())
    attention = [f"{p}.{w}" for p in ("q_proj", "k_proj", "v_proj", "out_proj") for w in ("weight", "bias")]
    norms = [f"{n}.{w}" for n in ("self_attn_layer_norm", "final_layer_norm") for w in ("weight", "bias")]
    feed_forward = [f"{p}.{w}" for p in ("fc1", "fc2") for w in ("weight", "bias")]
    block = [f"self_attn.{name}" for name in attention] + norms + feed_forward
    cross = [f"encoder_attn.{name}" for name in attention] + [
        f"encoder_attn_layer_norm.{w}" for w in ("weight", "bias")
    ]
    expected = {"lm_head.weight", "model.shared.weight"}
    expected |= {f"model.{stack}.embed_tokens.weight" for stack in ("encoder", "decoder")}
    expected |= {f"model.encoder.layers.0.{name}" for name in block}
    expected |= {f"model.decoder.layers.0.{name}" for name in block + cross}
    assert names == expected


def test_initial_weights_have_the_spread_of_their_kind():
    model = RandomTransformerForConditionalGeneration(
        tiny_config(d_model=64, d_ff=256, vocab_size=2000, tie_word_embeddings=False)
    )
    for weight in (model.model.shared.weight, model.lm_head.weight):
        assert weight.std().item() == pytest.approx(64**-0.5, rel=0.02)
    for name, parameter in model.model.decoder.layers[0].named_parameters():
        if "layer_norm" in name:
            assert torch.all(parameter == (1.0 if name.endswith("weight") else 0.0))
        elif name.endswith("bias"):
            assert torch.all(parameter == 0.0)
        else:  # Xavier: uniform within sqrt(6 / (fan in + fan out))
            bound = (6 / sum(parameter.shape)) ** 0.5
            assert 0.95 * bound < parameter.abs().max().item() <= bound


def test_weights_that_a_checkpoint_does_not_contain_are_initialized(tmp_path):
    tiny_model(norm_order="post").save_pretrained(tmp_path)
    loaded = RandomTransformerForConditionalGeneration.from_pretrained(tmp_path, final_layer_norm=True)
    for stack in (loaded.model.encoder, loaded.model.decoder):
        assert torch.equal(stack.layer_norm.weight, torch.ones(16))
        assert torch.equal(stack.layer_norm.bias, torch.zeros(16))


def test_dropout_locations_match_the_paper(monkeypatch):
    """On sub-layers' outputs and the sum of embedding and position; inside attention and FFN with their own rates."""
    rates = []

    def recorded(x, p=0.5, training=True):  # noqa: ARG001 (PyTorch's signature)
        rates.append(p)
        return x

    monkeypatch.setattr(modeling, "fast_dropout", recorded)
    monkeypatch.setattr(modeling.nn.functional, "dropout", recorded)
    model = tiny_model(
        dropout=0.11,
        attention_dropout=0.22,
        activation_dropout=0.33,
        encoder_layers=1,
        decoder_layers=1,
        attn_implementation="eager",
    )
    model.train()(input_ids=SOURCE, decoder_input_ids=TARGET)
    encoder = [0.11, 0.22, 0.11, 0.33, 0.11]
    decoder = [0.11, 0.22, 0.11, 0.22, 0.11, 0.33, 0.11]
    assert rates == encoder + decoder


# Loss


def test_loss_is_cross_entropy_without_ignored_labels():
    model = tiny_model()
    labels = torch.tensor([[7, 8, -100, -100], [9, 10, 11, 12]])
    output = model(input_ids=SOURCE, labels=labels)
    counted = labels != -100
    total = -output.logits.log_softmax(-1)[counted].gather(1, labels[counted][:, None]).sum()
    torch.testing.assert_close(output.loss, total / 6)
    torch.testing.assert_close(model(input_ids=SOURCE, labels=labels, num_items_in_batch=40).loss, total / 40)
    shifted = torch.tensor([[BOS, 7, 8, PAD], [BOS, 9, 10, 11]])
    torch.testing.assert_close(output.logits, model(input_ids=SOURCE, decoder_input_ids=shifted).logits)


@pytest.mark.parametrize("field", ["decoder_start_token_id", "pad_token_id"])
def test_shifting_labels_requires_special_tokens(field):
    with pytest.raises(ValueError, match=f"{field} .*must be set"):
        tiny_model(**{field: None})(input_ids=SOURCE, labels=TARGET)


# Inputs and outputs


@pytest.mark.parametrize(
    "wrap",
    [
        lambda states: BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=states[:, 0]),
        lambda states: Seq2SeqModelOutput(last_hidden_state=states, encoder_last_hidden_state=states),
        lambda states: {"last_hidden_state": states},
        lambda states: [states],
        lambda states: (states, None, None, "more"),
    ],
)
def test_encoder_outputs_of_any_class(wrap):
    model, source = tiny_model(), padded_batch([5, 3])
    target, mask = random_ids(2, 4), source["attention_mask"]
    states = model.get_encoder()(**source).last_hidden_state
    output = model(encoder_outputs=wrap(states), attention_mask=mask, decoder_input_ids=target)
    assert torch.equal(output.logits, model(**source, decoder_input_ids=target).logits)
    assert torch.equal(output.encoder_last_hidden_state, states)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_empty_batch_has_loss_0(attention):
    model = tiny_model(attn_implementation=attention)
    empty = torch.zeros(0, 5, dtype=torch.long)
    output = model(empty, attention_mask=empty, labels=empty)
    output.loss.backward()
    assert output.loss == 0
    assert output.logits.shape == (0, 5, 61)


@pytest.mark.parametrize("kept", [1, 3, torch.tensor([0, 2])])
def test_logits_to_keep(kept):
    model = tiny_model()
    everything = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    expected = everything[:, -kept:] if isinstance(kept, int) else everything[:, kept]
    actual = model(input_ids=SOURCE, decoder_input_ids=TARGET, logits_to_keep=kept).logits
    torch.testing.assert_close(actual, expected)


# Embeddings and their ties


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("tie", [True, False])
@pytest.mark.parametrize("size", [VOCAB_SIZE + 9, VOCAB_SIZE - 9])
def test_resizing_the_vocabulary(share, tie, size):
    model = tiny_model(share_embeddings=share, tie_word_embeddings=tie, lm_head_bias=True)
    ids = SOURCE.clamp(max=size - 1)
    before = model(input_ids=ids, decoder_input_ids=ids).logits
    model.resize_token_embeddings(size)
    after = model(input_ids=ids, labels=ids)
    assert after.logits.shape[-1] == model.config.vocab_size == size
    common = min(size, VOCAB_SIZE)
    assert_near(model(input_ids=ids, decoder_input_ids=ids).logits[..., :common], before[..., :common], 1e-5)
    encoder, decoder = model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight
    assert encoder.shape == decoder.shape == model.lm_head.weight.shape == (size, 16)
    assert model.lm_head.bias.shape == (size,)
    assert (encoder is decoder) == share
    assert (model.lm_head.weight is decoder) == tie


def test_resizing_a_model_without_a_head():
    model = tiny_model(share_embeddings=False).model
    model.resize_token_embeddings(VOCAB_SIZE + 9)
    new = torch.tensor([[VOCAB_SIZE + 8]])
    assert model(input_ids=new, decoder_input_ids=new).last_hidden_state.isfinite().all()


# Features of transformers


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradient_checkpointing_does_not_change_gradients(reentrant):
    gradients = []
    for checkpointing in (False, True):
        model = tiny_model().train()
        if checkpointing:
            enable_checkpointing(model, use_reentrant=reentrant)
        model(input_ids=SOURCE, labels=TARGET).loss.backward()
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_position_table_is_exact_in_every_precision(dtype, tmp_path):
    """After loading in another precision, and after a conversion to half precision and back."""
    tiny_model().save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=dtype)
    table = sinusoids(torch.arange(64), 16)
    assert torch.equal(model.model.encoder.embed_positions.table.float(), table)
    assert model(input_ids=SOURCE, decoder_input_ids=TARGET).logits.dtype == dtype
    model.half()
    assert torch.equal(model.model.encoder.embed_positions.table, table.half())
    assert torch.equal(model.to(dtype).model.encoder.embed_positions.table, table.to(dtype))


class WithAddedNorm(RandomTransformerForConditionalGeneration):
    """An edit that adds weights, which earlier checkpoints do not contain."""

    def __init__(self, config):
        super().__init__(config)
        self.added = nn.RMSNorm(config.d_model)
        self.post_init()


def test_weights_that_a_checkpoint_lacks_are_initialized(tmp_path):
    tiny_model().save_pretrained(tmp_path)
    model = WithAddedNorm.from_pretrained(tmp_path)
    assert model.added.weight.tolist() == [1.0] * model.config.d_model
