"""Small random models of transformers whose special tokens are those of `random_tokenizer`."""

from typing import Any

import torch
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    FSMTConfig,
    FSMTForConditionalGeneration,
    M2M100Config,
    M2M100ForConditionalGeneration,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.helpers.models import BOS, EOS, PAD

POSITIONS = 64
IDS = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": EOS, "decoder_start_token_id": BOS}
T5 = {"d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "initializer_factor": 20.0}
STACKS: dict[str, Any] = {
    f"{side}_{name}": 2 for side in ("encoder", "decoder") for name in ("layers", "attention_heads")
}
STACKS |= {"encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": POSITIONS, "init_std": 1.0}
CLASSES: dict[str, tuple[Any, Any]] = {
    "BART": (BartConfig, BartForConditionalGeneration),
    "FSMT": (FSMTConfig, FSMTForConditionalGeneration),
    "M2M100": (M2M100Config, M2M100ForConditionalGeneration),
    "Marian": (MarianConfig, MarianMTModel),
    "T5": (T5Config, T5ForConditionalGeneration),
}


def foreign_model(kind: str, **options: Any) -> PreTrainedModel:
    """A model with varied outputs, in double precision, so that rounding does not decide between nearly equal beams."""
    torch.manual_seed(3)
    config, model = CLASSES[kind]
    made = model(config(**{"d_model": 16, **IDS, **(T5 if kind == "T5" else STACKS), **options})).eval().double()
    if kind in ("BART", "Marian"):
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.requires_grad:  # Marian's sinusoids are not saved
                    parameter.mul_(3)
    return made
