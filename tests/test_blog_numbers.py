"""The blog post "The Random Transformer": what `examples/walkthrough.py` does not compare with the model's modules.

`tests/examples/test_walkthrough.py` tests the other results that follow from the post's printed numbers.
"""

import torch

from tutorials.blog_model import BLOG, blog_model, tensor

E = tensor(BLOG["E"])[None]  # [1, 2, 4]


def first_layer(**overrides: object) -> torch.nn.Module:
    model = blog_model(attention_scale=1 / 30, **overrides)
    model.set_attn_implementation("eager")
    return model.model.encoder.layers[0]


def test_evaluation_by_hand():
    """The blog post computes the sum and its norm a second time by hand, with other last digits of Z."""
    by_hand, attended = BLOG["by_hand"], first_layer().self_attn(E)[0]
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
    layer = first_layer(layer_norm_eps=2e-6 * sum(BLOG["std_E_plus_Z"]) / 2)
    normed = layer.self_attn_layer_norm(E + layer.self_attn(E)[0])[0]
    torch.testing.assert_close(normed, tensor(BLOG["layer_norm_E_plus_Z"]), rtol=5e-9, atol=6e-9)
