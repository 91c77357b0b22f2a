"""The results of the blog post "The Random Transformer" that follow from its printed numbers, by the model's modules.

The position encoding of "World" is tested against the correct value: the blog post inserts the dimension index for i
instead of index // 2. Its later numbers depend on its printed embedding E, which is therefore used as the input.
"""

import pytest
import torch
from torch import Tensor
from transformers.masking_utils import create_causal_mask

from modeling_random_transformer.modeling_random_transformer import eager_attention_forward, sinusoids
from tutorials.blog_model import BLOG, blog_model, blog_tokenizer, tensor

E = tensor(BLOG["E"])[None]  # [1, 2, 4]


def assert_printed(actual: Tensor, printed: object) -> None:
    """Equal to the printed digits: eight after the decimal point, or nine significant ones."""
    torch.testing.assert_close(actual.double().reshape(tensor(printed).shape), tensor(printed), rtol=5e-9, atol=6e-9)


def eager_model(**overrides: object) -> torch.nn.Module:
    model = blog_model(**overrides)
    model.set_attn_implementation("eager")
    return model


def first_layer(**overrides: object) -> torch.nn.Module:
    return eager_model(**overrides).model.encoder.layers[0]


def head_outputs(scale: float) -> Tensor:
    """The heads before they are concatenated: `[tokens, heads, d_v]`."""
    attention = first_layer().self_attn
    query, key, value = (attention.split_heads(attention.get_submodule(f"{name}_proj")(E), 3) for name in "qkv")
    return eager_attention_forward(attention, query, key, value, None, scaling=scale)[0][0]


def test_positions():
    encodings = sinusoids(torch.arange(2), 4)
    torch.testing.assert_close(encodings[0], torch.tensor(BLOG["position_encoding"]["pos0"]).float(), rtol=0, atol=0)
    expected = tensor(BLOG["position_encoding"]["pos1"]).float()
    torch.testing.assert_close(encodings[1], expected, rtol=0, atol=0)


def test_embedding_plus_position():
    model = eager_model()
    with torch.no_grad():
        model.model.shared.weight[:2] = tensor(BLOG["token_embedding"])
    summed = model.model.encoder.embed(torch.tensor([[0, 1]]), torch.arange(2), longest=2)
    positions = tensor([BLOG["position_encoding"]["pos0"], BLOG["position_encoding"]["pos1"]])
    expected = tensor(BLOG["token_embedding"]) + positions
    torch.testing.assert_close(summed[0], expected, rtol=0, atol=1e-7)  # the table is float32
    assert_printed(summed[0, 0], BLOG["E"][0])  # "Hello", whose position is correct in the blog post


def test_queries_keys_and_values():
    attention = first_layer().self_attn
    query, key, value = (attention.split_heads(attention.get_submodule(f"{name}_proj")(E), 3) for name in "qkv")
    assert_printed(query[0, 0], BLOG["Q1"])
    assert_printed(key[0, 0], BLOG["K1"])
    assert_printed(value[0, 0], BLOG["V1"])
    scores = query @ key.transpose(-1, -2)
    assert_printed(scores[0, 0], BLOG["scores1"])
    assert_printed(scores[0, 0] * attention.scaling, BLOG["scaled_scores1_sqrt3"])


def test_weights_saturate_with_the_papers_scale():
    _, weights = first_layer().self_attn(E)
    torch.testing.assert_close(weights[0, 0], tensor(BLOG["weights1_sqrt3"]), rtol=5e-9, atol=0)
    torch.testing.assert_close(weights[0, 1], tensor(BLOG["weights2_sqrt3"]), rtol=5e-9, atol=0)


@pytest.mark.parametrize(("scale", "suffix"), [(3**-0.5, "sqrt3"), (1 / 30, "div30")])
def test_heads(scale, suffix):
    heads = head_outputs(scale)
    assert_printed(heads[:, 0], BLOG[f"attention1_{suffix}"])
    assert_printed(heads[:, 1], BLOG[f"attention2_{suffix}"])


def test_multi_head_attention():
    attended, _ = first_layer(attention_scale=1 / 30).self_attn(E)
    assert_printed(attended[0], BLOG["Z_div30"])


def test_residual_sum():
    block = first_layer(attention_scale=1 / 30)
    summed = E + block.self_attn(E)[0]
    assert_printed(summed.mean(-1), BLOG["mean_E_plus_Z"])
    assert_printed(summed.std(-1, correction=0), BLOG["std_E_plus_Z"])


def test_evaluation_by_hand():
    """The blog post computes the sum and its norm a second time by hand, with other last digits of Z."""
    by_hand, block = BLOG["by_hand"], first_layer(attention_scale=1 / 30)
    attended = block.self_attn(E)[0]
    summed = E + attended
    deviations = summed - summed.mean(-1, keepdim=True)
    variance = summed.var(-1, correction=0)
    for ours, printed in (
        (attended, "Z"),
        (summed, "E_plus_Z"),
        (summed.mean(-1), "mean"),
        (summed[0, 0].mean(), "mean_of_Hello"),
        (variance.sqrt(), "std"),
        (deviations[0, 0], "deviations_of_Hello"),
    ):
        expected = tensor(by_hand[printed])
        torch.testing.assert_close(ours.reshape(expected.shape), expected, rtol=0, atol=6e-8)
    torch.testing.assert_close(variance[0, 0], tensor(by_hand["variance_of_Hello"]), rtol=1e-8, atol=0)
    torch.testing.assert_close(4 * variance[0, 0], tensor(by_hand["sum_of_squares_of_Hello"]), rtol=1e-8, atol=0)


def test_layer_norm():
    """The blog post's code divides by std + eps, the model by sqrt(var + eps): a difference of 2e-7 for this std of 10.

    With eps = 2 · std · 1e-6, sqrt(var + eps) is std + 1e-6 and reproduces the printed digits.
    """

    def add_and_norm(**overrides: object) -> Tensor:
        layer = first_layer(attention_scale=1 / 30, **overrides)
        return layer.self_attn_layer_norm(E + layer.self_attn(E)[0])[0]

    printed = tensor(BLOG["layer_norm_E_plus_Z"])
    torch.testing.assert_close(add_and_norm(), printed, rtol=0, atol=2e-7)
    assert_printed(add_and_norm(layer_norm_eps=2e-6 * sum(BLOG["std_E_plus_Z"]) / 2), printed.tolist())


def test_output_layer_chooses_hola():
    model = eager_model()
    with torch.no_grad():
        model.lm_head.weight.zero_()
        model.lm_head.bias.copy_(tensor(BLOG["logits"]))
    logits = model.lm_head(tensor([[1, 0, 1, 0]]))
    assert_printed(logits[0], BLOG["logits"])
    assert_printed(logits.softmax(-1)[0], BLOG["probabilities"])
    assert blog_tokenizer().decode(logits.argmax(-1)) == BLOG["greedy_choice"]


def test_causal_mask():
    example = BLOG["causal_mask_example"]
    scores = tensor(example["scores"])[None, None]
    config = eager_model().config
    mask = create_causal_mask(config, torch.empty(1, 3, 4, dtype=torch.float64), None, None)
    identity = torch.eye(3, dtype=torch.float64)[None, None]
    _, weights = eager_attention_forward(torch.nn.Identity(), scores, identity, identity, mask, scaling=1.0)
    assert_printed(weights[0, 0], example["row_softmax"])


def test_layer_norm_of_the_decoder():
    """Of the printed output of a self-attention with random weights; see `test_layer_norm` for the tolerance."""
    decoder = BLOG["decoder"]
    normed = (
        eager_model()
        .model.decoder.layers[0]
        .self_attn_layer_norm(tensor(decoder["SOS_plus_position"]) + tensor(decoder["self_attention"]))
    )
    torch.testing.assert_close(normed, tensor(decoder["layer_norm"]), rtol=0, atol=3e-7)
