"""Our model and its peers, with equal sizes and vocabularies and with random weights."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MarianConfig, MarianMTModel, T5Config, T5ForConditionalGeneration
from transformers.modeling_outputs import Seq2SeqLMOutput

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration
from modeling_random_transformer.modeling_random_transformer import sinusoids

VOCAB_SIZE = 10_000
PAD, START, END = 0, 1, 2
MAX_POSITIONS = 1024


@dataclass(frozen=True)
class Size:
    """Sizes shared by all models."""

    d_model: int
    d_ff: int
    layers: int
    heads: int


SIZES = {"tiny": Size(128, 256, 4, 4), "base": Size(512, 2048, 6, 8), "big": Size(1024, 4096, 6, 16)}


def ours(size: Size, dropout: float = 0.0) -> nn.Module:
    config = RandomTransformerConfig(
        vocab_size=VOCAB_SIZE,
        d_model=size.d_model,
        d_ff=size.d_ff,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        num_heads=size.heads,
        dropout=dropout,
        max_position_embeddings=MAX_POSITIONS,
    )
    return RandomTransformerForConditionalGeneration(config)


def marian(size: Size, dropout: float = 0.0) -> nn.Module:
    config = MarianConfig(
        vocab_size=VOCAB_SIZE,
        d_model=size.d_model,
        encoder_layers=size.layers,
        decoder_layers=size.layers,
        encoder_attention_heads=size.heads,
        decoder_attention_heads=size.heads,
        encoder_ffn_dim=size.d_ff,
        decoder_ffn_dim=size.d_ff,
        activation_function="relu",
        scale_embedding=True,
        dropout=dropout,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=START,
        forced_eos_token_id=None,
    )
    return MarianMTModel(config)


def t5(size: Size, dropout: float = 0.0) -> nn.Module:
    config = T5Config(
        vocab_size=VOCAB_SIZE,
        d_model=size.d_model,
        d_kv=size.d_model // size.heads,
        d_ff=size.d_ff,
        num_layers=size.layers,
        num_decoder_layers=size.layers,
        num_heads=size.heads,
        dropout_rate=dropout,
        feed_forward_proj="relu",
        pad_token_id=PAD,
        eos_token_id=END,
        decoder_start_token_id=START,
    )
    return T5ForConditionalGeneration(config)


class PlainTorch(nn.Module):
    """`torch.nn.Transformer` with embeddings, positions, masks and an output layer."""

    positions: Tensor  # [MAX_POSITIONS, d_model]

    def __init__(self, size: Size, dropout: float = 0.0):
        super().__init__()
        self.embed = nn.Embedding(VOCAB_SIZE, size.d_model)
        nn.init.normal_(self.embed.weight, std=size.d_model**-0.5)
        self.scale = math.sqrt(size.d_model)
        self.dropout = nn.Dropout(dropout)
        self.transformer = nn.Transformer(
            size.d_model, size.heads, size.layers, size.layers, size.d_ff, dropout, batch_first=True
        )
        self.register_buffer("positions", sinusoids(torch.arange(MAX_POSITIONS), size.d_model), persistent=False)

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, decoder_input_ids: Tensor, **_: Any
    ) -> Seq2SeqLMOutput:
        """Logits `[batch, target_len, vocab_size]`."""
        padding = attention_mask == 0
        length = decoder_input_ids.shape[1]
        future = torch.ones(length, length, dtype=torch.bool, device=input_ids.device).triu(1)
        states = self.transformer(
            self.embed_with_positions(input_ids),
            self.embed_with_positions(decoder_input_ids),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
            tgt_is_causal=True,
        )
        return Seq2SeqLMOutput(logits=nn.functional.linear(states, self.embed.weight))

    def embed_with_positions(self, ids: Tensor) -> Tensor:
        """`[batch, length]` → `[batch, length, d_model]`."""
        return self.dropout(self.embed(ids) * self.scale + self.positions[: ids.shape[1]])


GENERATORS = {"random-transformer": ours, "Marian": marian}
TRAINED = {"random-transformer": ours, "Marian": marian, "T5": t5, "nn.Transformer": PlainTorch}
