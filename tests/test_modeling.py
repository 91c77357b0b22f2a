"""The model: positions, shapes, initialization, loss, inputs and outputs, and transformers' features."""

import inspect
import math
import traceback
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import AttentionInterface, AutoModelForSeq2SeqLM
from transformers.masking_utils import AttentionMaskInterface, eager_mask
from transformers.utils.output_capturing import OutputRecorder

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerModel
from modeling_random_transformer import modeling_random_transformer as modeling
from modeling_random_transformer.modeling_random_transformer import eager_attention_forward, sinusoids
from tests.helpers.models import BOS, PAD, VOCAB_SIZE, assert_near, padded_batch, random_ids, tiny_config, tiny_model

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


def test_concatenated_layout_has_all_sines_first():
    interleaved = sinusoids(torch.arange(9), 6)
    concatenated = sinusoids(torch.arange(9), 6, "concatenated")
    assert torch.equal(concatenated, torch.cat([interleaved[:, 0::2], interleaved[:, 1::2]], dim=1))


def test_position_offset():
    plain, offset = tiny_model().model.encoder, tiny_model(position_offset=2).model.encoder
    assert torch.equal(offset.embed_positions(torch.arange(5), 5), plain.embed_positions(torch.arange(2, 7), 7))


@pytest.mark.parametrize("kind", ["sinusoidal", "learned", "none"])
def test_only_learned_positions_are_stored(kind):
    names = tiny_model(position_embedding=kind).state_dict()
    assert any("embed_positions" in name for name in names) == (kind == "learned")


def test_without_positions_the_encoder_ignores_order():
    model = tiny_model(position_embedding="none").model.encoder
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    encoded, shuffled = model(SOURCE).last_hidden_state, model(SOURCE[:, order]).last_hidden_state
    torch.testing.assert_close(shuffled, encoded[:, order])


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


@pytest.mark.parametrize(("d_k", "d_v"), [(8, 8), (3, 3), (5, 7), (16, 1)])
def test_head_widths_are_independent_of_d_model(d_k, d_v):
    model = tiny_model(d_k=d_k, d_v=d_v)
    attention = model.model.decoder.layers[0].encoder_attn
    assert attention.q_proj.weight.shape == attention.k_proj.weight.shape == (2 * d_k, 16)
    assert attention.v_proj.weight.shape == (2 * d_v, 16)
    assert attention.out_proj.weight.shape == (16, 2 * d_v)
    assert model(input_ids=SOURCE, decoder_input_ids=TARGET).logits.shape == (2, 5, VOCAB_SIZE)


def test_initialization():
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


@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_norm_order(norm_order):
    """LayerNorm(x + sublayer(x)) or x + sublayer(LayerNorm(x))."""
    layer = tiny_model(norm_order=norm_order).model.encoder.layers[0]
    expected = states = torch.randn(1, 3, 16)
    sublayers = [
        (layer.self_attn_layer_norm, lambda x: layer.self_attn(x)[0]),
        (layer.final_layer_norm, layer.feed_forward),
    ]
    for norm, sublayer in sublayers:
        expected = norm(expected + sublayer(expected)) if norm_order == "post" else expected + sublayer(norm(expected))
    torch.testing.assert_close(layer(states), expected)
    assert isinstance(tiny_model(norm_order=norm_order).model.encoder.layer_norm, nn.LayerNorm) == (norm_order == "pre")


def test_embeddings_are_scaled_before_positions_are_added():
    plain, scaled = tiny_model(scale_embedding=False).model.encoder, tiny_model().model.encoder
    rows, positions = scaled.embed_tokens(SOURCE), torch.arange(7)
    for tokens in (SOURCE, rows):
        torch.testing.assert_close(scaled.embed(tokens, positions, 7), rows * 4.0 + sinusoids(positions, 16))
        torch.testing.assert_close(plain.embed(rows, positions, 7), rows + sinusoids(positions, 16))


def test_at_most_eight_frames_from_the_call_to_a_matrix_product(monkeypatch):
    """Head, model, stack, layer, Add & Norm, its sub-layer, attention or feed-forward, projection of keys or values."""
    folder, depths = str(Path(modeling.__file__).parent), []
    product = torch.nn.functional.linear

    def counted(*args):
        frames = traceback.extract_stack()
        depths.append(sum(frame.filename.startswith(folder) for frame in frames))
        return product(*args)

    monkeypatch.setattr(torch.nn.functional, "linear", counted)
    model = tiny_model()
    model(input_ids=SOURCE, decoder_input_ids=TARGET)
    projections = 2 * (4 + 2) + 3 * (4 + 4 + 2)  # of two encoder layers and three decoder layers
    assert len(depths) == projections + 1
    assert max(depths) == 8


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
    labels = TARGET.clone()
    labels[0, 3:] = -100
    output = model(input_ids=SOURCE, labels=labels)
    counted = labels != -100
    log_probabilities = output.logits.log_softmax(-1)
    by_hand = -log_probabilities[counted].gather(1, labels[counted][:, None]).mean()
    torch.testing.assert_close(output.loss, by_hand)
    with_inputs = model(input_ids=SOURCE, decoder_input_ids=model.prepare_decoder_input_ids_from_labels(labels))
    torch.testing.assert_close(output.logits, with_inputs.logits)


def test_loss_is_normalized_by_num_items_in_batch():
    output = tiny_model()(input_ids=SOURCE, labels=TARGET, num_items_in_batch=torch.tensor(40))
    torch.testing.assert_close(output.loss, tiny_model()(input_ids=SOURCE, labels=TARGET).loss * 10 / 40)


def test_labels_are_shifted_right():
    shifted = tiny_model().prepare_decoder_input_ids_from_labels(torch.tensor([[7, 8, -100, -100], [9, 10, 11, 12]]))
    assert shifted.tolist() == [[BOS, 7, 8, PAD], [BOS, 9, 10, 11]]


@pytest.mark.parametrize("field", ["decoder_start_token_id", "pad_token_id"])
def test_shifting_labels_requires_special_tokens(field):
    with pytest.raises(ValueError, match=f"{field} .*must be set"):
        tiny_model(**{field: None})(input_ids=SOURCE, labels=TARGET)


# Inputs and outputs


def test_embeddings_instead_of_ids():
    model = tiny_model()
    rows = model.get_input_embeddings()
    expected = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    actual = model(inputs_embeds=rows(SOURCE), decoder_inputs_embeds=rows(TARGET)).logits
    assert torch.equal(actual, expected)


@pytest.mark.parametrize("as_tuple", [True, False])
def test_encoder_outputs_instead_of_the_source(as_tuple):
    model = tiny_model()
    encoded = model.get_encoder()(SOURCE)
    encoded = encoded.to_tuple() if as_tuple else encoded
    expected = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    assert torch.equal(model(encoder_outputs=encoded, decoder_input_ids=TARGET).logits, expected)


def test_attentions_and_hidden_states():
    model = tiny_model(attn_implementation="eager", num_heads=4)
    batch = padded_batch([7, 4])
    output = model(**batch, decoder_input_ids=TARGET, output_attentions=True, output_hidden_states=True)
    assert [a.shape for a in output.encoder_attentions] == [(2, 4, 7, 7)] * 2
    assert [a.shape for a in output.decoder_attentions] == [(2, 4, 5, 5)] * 3
    assert [a.shape for a in output.cross_attentions] == [(2, 4, 5, 7)] * 3
    assert [h.shape for h in output.encoder_hidden_states] == [(2, 7, 16)] * 3
    assert [h.shape for h in output.decoder_hidden_states] == [(2, 5, 16)] * 4
    for weights in output.cross_attentions:
        torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 5))
        assert not weights[1, :, :, 4:].any()  # padding
    for weights in output.decoder_attentions:
        assert not weights.triu(1).any()  # the future
    assert torch.equal(output.encoder_hidden_states[-1], output.encoder_last_hidden_state)


def test_hidden_state_with_a_negative_index():
    options = {"input_ids": SOURCE, "decoder_input_ids": TARGET}
    every = tiny_model()(**options, output_hidden_states=True).decoder_hidden_states
    if "num_hidden_layers_key" not in inspect.signature(OutputRecorder).parameters:
        pytest.skip("this version of transformers records all hidden states or none")
    last = tiny_model()(**options, output_hidden_states=[-1]).decoder_hidden_states
    assert [state is None for state in last] == [True, True, True, False]
    assert torch.equal(last[-1], every[-1])


def test_attentions_of_rows_that_share_a_source():
    model = tiny_model(attn_implementation="eager")
    batch, targets = padded_batch([7, 4]), random_ids(6, 5)
    copies = {name: value.repeat_interleave(3, dim=0) for name, value in batch.items()}
    shared = model(
        encoder_outputs=model.get_encoder()(**batch),
        attention_mask=batch["attention_mask"],
        decoder_input_ids=targets,
        output_attentions=True,
    )
    copied = model(**copies, decoder_input_ids=targets, output_attentions=True)
    for ours, theirs in zip(shared.cross_attentions, copied.cross_attentions, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_return_dict_false():
    model = tiny_model()
    expected = model(input_ids=SOURCE, labels=TARGET)
    loss, logits, *_ = model(input_ids=SOURCE, labels=TARGET, return_dict=False)
    assert torch.equal(loss, expected.loss)
    assert torch.equal(logits, expected.logits)


@pytest.mark.parametrize("kept", [1, 3, torch.tensor([0, 2])])
def test_logits_to_keep(kept):
    model = tiny_model()
    everything = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    expected = everything[:, -kept:] if isinstance(kept, int) else everything[:, kept]
    actual = model(input_ids=SOURCE, decoder_input_ids=TARGET, logits_to_keep=kept).logits
    torch.testing.assert_close(actual, expected)


def test_base_model_has_no_output_layer():
    torch.manual_seed(0)
    model = RandomTransformerModel(tiny_config()).eval()
    assert model(input_ids=SOURCE, decoder_input_ids=TARGET).last_hidden_state.shape == (2, 5, 16)


# Embeddings and their ties


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("tie", [True, False])
def test_tied_weights(share, tie):
    model = tiny_model(share_embeddings=share, tie_word_embeddings=tie)
    encoder, decoder = model.model.encoder.embed_tokens.weight, model.model.decoder.embed_tokens.weight
    assert (encoder is decoder) == share
    assert (model.lm_head.weight is decoder) == tie


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


@pytest.mark.parametrize("share", [True, False])
def test_resizing_a_model_without_a_head(share):
    model = tiny_model(share_embeddings=share).model
    model.resize_token_embeddings(VOCAB_SIZE + 9)
    new = torch.tensor([[VOCAB_SIZE + 8]])
    assert model(input_ids=new, decoder_input_ids=new).last_hidden_state.isfinite().all()


# Features of transformers


def enable_checkpointing(model, options):
    """transformers 5.23 renamed the method and deprecated the old name."""
    enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
    enable(options)


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_gradient_checkpointing_does_not_change_gradients(norm_order, reentrant):
    def gradients(checkpointing):
        model = tiny_model(norm_order=norm_order).train()
        if checkpointing:
            enable_checkpointing(model, {"use_reentrant": reentrant})
        model(input_ids=SOURCE, labels=TARGET).loss.backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    plain, checkpointed = gradients(False), gradients(True)
    for name, gradient in plain.items():
        torch.testing.assert_close(checkpointed[name], gradient, msg=name)


def test_custom_attention_function():
    calls = []

    def noted(module, *args, **kwargs):
        calls.append(module)
        return eager_attention_forward(module, *args, **kwargs)

    AttentionInterface.register("noted", noted)
    AttentionMaskInterface.register("noted", eager_mask)
    model = tiny_model(attn_implementation="eager")
    expected = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    model.set_attn_implementation("noted")
    assert torch.equal(model(input_ids=SOURCE, decoder_input_ids=TARGET).logits, expected)
    assert len(calls) == 2 + 2 * 3


def test_flash_attention_raises_if_unsupported():
    with pytest.raises(ValueError, match="d_k=5, d_v=7"):
        tiny_model(d_k=5, d_v=7).set_attn_implementation("flash_attention_2")


def test_flash_attention_can_be_requested():
    """Without its kernels transformers raises an error; the model itself supports it."""
    if torch.cuda.is_available():
        pytest.skip("with a GPU the request may be granted")
    with pytest.raises((ImportError, ValueError), match=r"(?i)flash"):
        tiny_model().set_attn_implementation("flash_attention_2")


@pytest.mark.parametrize("position_embedding", ["sinusoidal", "learned"])
def test_loading_through_the_meta_device(position_embedding, tmp_path):
    model = tiny_model(position_embedding=position_embedding, norm_order="pre")
    model.save_pretrained(tmp_path)
    expected = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, device_map="cpu")
    assert torch.equal(loaded(input_ids=SOURCE, decoder_input_ids=TARGET).logits, expected)
    with torch.device("meta"):
        empty = RandomTransformerForConditionalGeneration(model.config)
    assert all(parameter.is_meta for parameter in empty.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_loading_in_another_precision_keeps_the_position_table_exact(dtype, tmp_path):
    tiny_model().save_pretrained(tmp_path)
    model = AutoModelForSeq2SeqLM.from_pretrained(tmp_path, dtype=dtype)
    assert torch.equal(model.model.encoder.embed_positions.table.float(), sinusoids(torch.arange(64), 16))
    assert model(input_ids=SOURCE, decoder_input_ids=TARGET).logits.dtype == dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_converting_to_half_precision_and_back_keeps_the_position_table_exact(dtype):
    table = tiny_model().model.encoder.embed_positions.table
    for back in (torch.float32, torch.float64):
        positions = tiny_model().to(dtype).to(back).model.encoder.embed_positions
        assert torch.equal(positions.table, table.to(back))
    assert torch.equal(tiny_model().to(dtype).model.encoder.embed_positions.table, table.to(dtype))


def test_offloading_to_disk(tmp_path):
    model = tiny_model()
    expected = model(input_ids=SOURCE, decoder_input_ids=TARGET).logits
    model.save_pretrained(tmp_path / "model")
    device_map = {"model.shared": "cpu", "lm_head": "cpu"}
    for stack in ("model.encoder", "model.decoder"):
        device_map |= dict.fromkeys(
            [f"{stack}.{part}" for part in ("embed_tokens", "embed_positions", "layer_norm")], "cpu"
        )
        device_map[f"{stack}.layers"] = "disk"
    loaded = AutoModelForSeq2SeqLM.from_pretrained(
        tmp_path / "model", device_map=device_map, offload_folder=tmp_path / "offload"
    )
    assert torch.equal(loaded(input_ids=SOURCE, decoder_input_ids=TARGET).logits, expected)


@pytest.mark.long
@pytest.mark.parametrize("norm_order", ["post", "pre"])
def test_compiling(norm_order):
    model = tiny_model(norm_order=norm_order)
    batch = padded_batch([7, 4]) | {"labels": TARGET}
    expected = model(**batch)
    expected.loss.backward()
    gradient = model.model.shared.weight.grad.clone()
    model.zero_grad()
    compiled = torch.compile(model, fullgraph=True)(**batch)
    compiled.loss.backward()
    assert_near(compiled.logits, expected.logits, 1e-5)
    assert_near(model.model.shared.weight.grad, gradient, 1e-4)
