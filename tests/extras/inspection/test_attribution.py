"""Direct logit attribution and the logit lens."""

import pytest
import torch
from peft import LoraConfig, get_peft_model

from modeling_random_transformer import RandomTransformerForCausalLM
from modeling_random_transformer.extras.inspection import intervene, trace
from modeling_random_transformer.extras.inspection.attribution import logit_attribution, logit_lens
from modeling_random_transformer.modeling_random_transformer import RandomTransformerDecoderLayer
from modeling_random_transformer.quantization_random_transformer import Int8Linear
from tests.helpers.models import padded_batch, random_ids, tiny_model

CONFIGURATIONS = (
    {},
    {"norm_order": "pre", "d_k": 5, "d_v": 3},
    {"final_layer_norm": True, "position_embedding": "none"},
    {"attention_bias": False, "tie_word_embeddings": False, "lm_head_bias": True},
)


def traced(**overrides):
    """A random model, its trace, and its logits, `[batch, target_len, vocab_size]`."""
    model = tiny_model(**overrides)
    for name, parameter in model.named_parameters():
        if "bias" in name or "norm" in name:  # their initial values are 0 and 1
            torch.nn.init.normal_(parameter)
    with torch.no_grad(), trace(model) as recorded:
        logits = model(**padded_batch([5, 3]), decoder_input_ids=random_ids(2, 4)).logits
    return model, recorded, logits


@pytest.mark.parametrize("overrides", CONFIGURATIONS, ids=str)
def test_parts_sum_to_the_logits(overrides):
    model, recorded, logits = traced(**overrides)
    tokens = torch.arange(model.config.vocab_size).expand(logits.shape)
    with torch.no_grad():
        values = logit_attribution(model, recorded, tokens)
    assert len(values) == 3 + model.config.decoder_layers * (2 * model.config.num_heads + 1)
    torch.testing.assert_close(sum(values.values()), logits, rtol=0, atol=1e-4)
    contrast = sum(value[..., 7] - value[..., 5] for value in values.values())
    torch.testing.assert_close(contrast, logits[..., 7] - logits[..., 5], rtol=0, atol=1e-4)


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_language_models_and_half_precision(norm_order):
    model = RandomTransformerForCausalLM(tiny_model(norm_order=norm_order).config).eval()
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
        model.to(dtype)
        with torch.no_grad(), trace(model) as recorded:
            logits = model(random_ids(2, 4)).logits
            tokens = torch.arange(model.config.vocab_size).expand(logits.shape)
            values = logit_attribution(model, recorded, tokens)
            *_, (_, last) = logit_lens(model, recorded)
        assert not any("encoder_attn" in path for path in values)
        torch.testing.assert_close(sum(values.values()).float(), logits.float(), rtol=0, atol=tolerance)
        torch.testing.assert_close(last, logits)


def test_adapters_and_quantized_weights_are_errors():
    lora = LoraConfig(target_modules=["out_proj"], init_lora_weights=False)
    quantized = tiny_model()
    quantized.lm_head = Int8Linear(quantized.config.d_model, quantized.config.vocab_size, bias=False)
    for model, name in ((get_peft_model(tiny_model(), lora), "out_proj"), (quantized, "lm_head")):
        with trace(model) as recorded, pytest.raises(ValueError, match=rf"{name} must be nn.Linear \(merge adapters"):
            logit_attribution(model, recorded, torch.zeros(1, 1, 1, dtype=torch.long))


@pytest.mark.parametrize("norm_order", ["pre", "post"])
def test_edited_residual_connections_are_an_error(norm_order, monkeypatch):
    """The sum of the parts would not be the logits."""

    def forward(self, hidden_states, mask, source, encoder_attention_mask=None, **_):
        states = self.norm_before(self.self_attn_layer_norm, hidden_states)
        states, _ = self.self_attn(states, attention_mask=mask)
        hidden_states = self.norm_after(self.self_attn_layer_norm, 0.5 * hidden_states + states)
        states = self.norm_before(self.encoder_attn_layer_norm, hidden_states)
        states, _ = self.encoder_attn(states, attention_mask=encoder_attention_mask, key_value_states=source)
        hidden_states = self.norm_after(self.encoder_attn_layer_norm, hidden_states + states)
        states = self.feed_forward(self.norm_before(self.final_layer_norm, hidden_states))
        return self.norm_after(self.final_layer_norm, hidden_states + states)

    monkeypatch.setattr(RandomTransformerDecoderLayer, "forward", forward)
    model, recorded, logits = traced(norm_order=norm_order)
    with pytest.raises(ValueError, match=r"the sum of the parts must give the logits .* have been edited"):
        logit_attribution(model, recorded, logits.topk(2).indices)


def test_replaced_values_have_no_attribution():
    """A new sum of a residual connection is no part."""
    model = tiny_model()
    inputs = padded_batch([5, 3]) | {"decoder_input_ids": random_ids(2, 4)}
    with torch.no_grad(), intervene(model, {"decoder.layers.0.ffn.residual": lambda value: value.flip(-1)}):
        with trace(model) as recorded:
            logits = model(**inputs).logits
        with pytest.raises(ValueError, match="or values were replaced"):
            logit_attribution(model, recorded, logits.topk(2).indices)


def test_a_head_of_the_last_layer_has_its_own_part():
    """Without layer norms after it, the value is the effect of the head on the logits."""
    model, recorded, logits = traced(norm_order="pre", final_layer_norm=False)
    head = f"decoder.layers.{model.config.decoder_layers - 1}.encoder_attn.head.1"
    model.model.decoder.layers[-1].fc2.weight.data.zero_()  # the head has no effect on the feed-forward network
    inputs = padded_batch([5, 3]), random_ids(2, 4)
    tokens = torch.arange(model.config.vocab_size).expand(logits.shape)
    with torch.no_grad():
        with trace(model) as recorded:
            logits = model(**inputs[0], decoder_input_ids=inputs[1]).logits
        with intervene(model, {f"{head}.output": 0}):
            without = model(**inputs[0], decoder_input_ids=inputs[1]).logits
        value = logit_attribution(model, recorded, tokens)[head]
    torch.testing.assert_close(value, logits - without, rtol=0, atol=1e-4)


@pytest.mark.parametrize("overrides", CONFIGURATIONS, ids=str)
def test_logit_lens(overrides):
    """The last one shows the logits, the first one those of the embedding."""
    model, recorded, logits = traced(**overrides)
    with torch.no_grad():
        lens = dict(logit_lens(model, recorded))
        embedding = model.lm_head(model.model.decoder.layer_norm(recorded["decoder.embedding.sum"]))
    assert len(lens) == 1 + 3 * model.config.decoder_layers
    torch.testing.assert_close(list(lens.values())[-1], logits, rtol=0, atol=1e-5)
    torch.testing.assert_close(lens["decoder.embedding"], embedding, rtol=0, atol=1e-5)
