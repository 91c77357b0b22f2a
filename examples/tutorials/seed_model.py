"""The model of "The Random Transformer" with the weights that the post prints, and all of its reproducible numbers."""

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

SEED: dict[str, Any] = json.loads((Path(__file__).parent / "seed_numbers.json").read_text())
HEADS = (SEED["head1"], SEED["head2"])


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def seed_model(seed: int = 0, **overrides: Any) -> RandomTransformerForConditionalGeneration:
    """The `"blog"` model in double precision, with the post's weights in the attention of its first encoder block.

    Args:
        seed: of the weights that the post draws without printing them.
        **overrides: fields of the configuration that differ from the preset.
    """
    torch.manual_seed(seed)
    config = RandomTransformerConfig.from_preset("blog", **overrides)
    model = RandomTransformerForConditionalGeneration(config).double().eval()
    state = model.state_dict()
    block = "model.encoder.layers.0.self_attn"
    for name in ("WQ", "WK", "WV"):  # x @ W in the post, x @ W.T in a Linear
        state[f"{block}.{name[1].lower()}_proj.weight"] = torch.cat([tensor(head[name]).T for head in HEADS])
    state[f"{block}.out_proj.weight"] = tensor(SEED["W_output"]).T
    model.load_state_dict(state)
    return model


def seed_tokenizer() -> RandomTransformerTokenizer:
    """The post's vocabulary of ten words."""
    return RandomTransformerTokenizer.from_words(SEED["vocabulary"], bos_token="SOS", eos_token="EOS")
