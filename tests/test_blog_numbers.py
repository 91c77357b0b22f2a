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


def test_layer_norm_has_the_printed_numbers():
    """The blog post's code divides by std + eps, the model by sqrt(var + eps): a difference of 2e-7 for this std of 10.

    With eps = 2 · std · 1e-6, sqrt(var + eps) is std + 1e-6 and reproduces the printed digits.
    """
    layer = first_layer(layer_norm_eps=2e-6 * sum(BLOG["std_E_plus_Z"]) / 2)
    normed = layer.self_attn_layer_norm(E + layer.self_attn(E)[0])[0]
    torch.testing.assert_close(normed, tensor(BLOG["layer_norm_E_plus_Z"]), rtol=5e-9, atol=6e-9)
