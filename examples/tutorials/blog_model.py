"""The model of the blog post "The Random Transformer" (Omar Sanseviero) with its printed weights and numbers."""

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modeling_random_transformer import (
    RandomTransformerConfig,
    RandomTransformerForConditionalGeneration,
    RandomTransformerTokenizer,
)

BLOG: dict[str, Any] = json.loads((Path(__file__).parent / "blog_numbers.json").read_text())
HEADS = (BLOG["head1"], BLOG["head2"])


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def blog_model(seed: int = 0, **overrides: Any) -> RandomTransformerForConditionalGeneration:
    """The `"blog"` preset in float64 with the printed weights in the self-attention of the first encoder layer.

    Args:
        seed: random seed of all other weights, which the blog post does not print.
        **overrides: fields of the configuration that differ from the preset.
    """
    torch.manual_seed(seed)
    config = RandomTransformerConfig.from_preset("blog", **overrides)
    model = RandomTransformerForConditionalGeneration(config).double().eval()
    state = model.state_dict()
    block = "model.encoder.layers.0.self_attn"
    for name in ("WQ", "WK", "WV"):  # x @ W in the blog post, x @ W.T in nn.Linear
        state[f"{block}.{name[1].lower()}_proj.weight"] = torch.cat([tensor(head[name]).T for head in HEADS])
    state[f"{block}.out_proj.weight"] = tensor(BLOG["W_output"]).T
    model.load_state_dict(state)
    return model


def blog_tokenizer() -> RandomTransformerTokenizer:
    """The blog post's vocabulary of ten words."""
    return RandomTransformerTokenizer.from_words(BLOG["vocabulary"], bos_token="SOS", eos_token="EOS")
