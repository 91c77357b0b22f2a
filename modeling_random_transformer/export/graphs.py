"""The graphs that are exported to ONNX: one encodes the source, the other computes a decoder step.

The encoder's layers are the model's modules; the decoder is the `FastDecoder` of `generate()`. Every size is dynamic.
Beams of one source share its keys and values, as in `generate()`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..generation_random_transformer import FastDecoder
from ..modeling_random_transformer import (
    RandomTransformerAttention,
    RandomTransformerForConditionalGeneration,
    eager_attention_forward,
)


class EncoderGraph(nn.Module):
    """Encodes the source and projects it to the keys and values of all decoder layers. Requires eager attention."""

    def __init__(self, model: RandomTransformerForConditionalGeneration):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Ids and mask `[sources, source_len]` → keys and values by layer, `[sources, heads, source_len, width]`."""
        encoder, decoder = self.model.model.encoder, self.model.model.decoder
        # `longest` is None: the graph must not depend on the length of the example.
        states = encoder.embed(input_ids, torch.arange(input_ids.shape[1]), longest=None)
        mask = attention_mask[:, None, None] != 0
        for layer in encoder.layers:
            states = layer(states, attention_mask=mask)
        states = encoder.layer_norm(states)
        outputs: list[Tensor] = []
        for layer in decoder.layers:
            attention: Any = layer.encoder_attn
            outputs.append(attention.split_heads(attention.k_proj(states), attention.config.d_k))
            outputs.append(attention.split_heads(attention.v_proj(states), attention.config.d_v))
        return tuple(outputs)


class DecoderGraph(nn.Module):
    """Computes a decoder step over the first tokens of the target, or over one or more later ones."""

    def __init__(self, model: RandomTransformerForConditionalGeneration):
        super().__init__()
        self.model = model

    def forward(
        self, decoder_input_ids: Tensor, attention_mask: Tensor, source: Sequence[Tensor], past: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Compute the logits of the next token after each of the new ones.

        Args:
            decoder_input_ids: new tokens, `[sources, beams, new_len]`.
            attention_mask: 1 for source tokens, 0 for padding, `[sources, source_len]`.
            source: the outputs of `EncoderGraph`.
            past: keys and values of the target by layer, `[sources, beams, heads, past_len, d_k or d_v]`; `past_len`
                may be 0.

        Returns:
            Logits `[sources, beams, new_len, vocab_size]`, then `past` with the new tokens, then the weights of the
            cross-attention, `[sources, beams, layers, heads, new_len, source_len]`.
        """
        sources, beams, new_len = decoder_input_ids.shape
        past_len = past[0].shape[3]
        new = torch.arange(past_len, past_len + new_len)
        causal_mask = torch.arange(past_len + new_len) <= new[:, None]  # [new_len, past_len + new_len]
        source_mask = attention_mask[:, None, None] != 0
        decoder = self.model.model.decoder
        rows = [part.flatten(0, 1) for part in past]
        layers = zip(decoder.layers, rows[::2], rows[1::2], source[::2], source[1::2], strict=True)
        attentions = [GraphAttention(*layer, causal_mask, source_mask) for layer in layers]
        states = decoder.embed(decoder_input_ids.flatten(0, 1), new, longest=None)
        logits = FastDecoder(decoder, self.model.lm_head)(states, attentions)
        present = [part for attention in attentions for part in (attention.keys, attention.values)]
        outputs = [rows.unflatten(0, (sources, beams)) for rows in (logits, *present)]
        weights = torch.stack([attention.source_weights for attention in attentions], dim=1)
        return *outputs, weights.unflatten(3, (beams, new_len)).movedim(3, 1)


@dataclass
class GraphAttention:
    """Eager attention of one decoder layer, with a cache that grows by concatenation (see `StepAttention`).

    Attributes:
        layer: the decoder layer.
        keys: the target's keys so far, `[batch, heads, past_len, d_k]`, where batch is sources · beams.
        values: its values, `[batch, heads, past_len, d_v]`.
        source_keys: the source's keys, `[sources, heads, source_len, d_k]`.
        source_values: its values, `[sources, heads, source_len, d_v]`.
        causal_mask: true where a new token may see a token, `[new_len, past_len + new_len]`.
        source_mask: true for source tokens, `[sources, 1, 1, source_len]`.
        source_weights: the weights of the cross-attention of the last step, `[sources, heads, beams · new_len,
            source_len]`.
    """

    layer: Any
    keys: Tensor
    values: Tensor
    source_keys: Tensor
    source_values: Tensor
    causal_mask: Tensor
    source_mask: Tensor
    source_weights: Tensor = field(init=False)

    def attend_to_target(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`[batch, new_len, heads · d_k]` and `[batch, new_len, heads · d_v]` → `[batch, new_len, heads · d_v]`."""
        attention = self.layer.self_attn
        self.keys = torch.cat([self.keys, attention.split_heads(key, attention.config.d_k)], dim=2)
        self.values = torch.cat([self.values, attention.split_heads(value, attention.config.d_v)], dim=2)
        return attend(attention, query, self.keys, self.values, self.causal_mask[None, None])[0]

    def attend_to_source(self, query: Tensor) -> Tensor:
        """`[batch, new_len, heads · d_k]` → `[batch, new_len, heads · d_v]`."""
        batch, new_len, width = query.shape
        grouped = query.reshape(self.source_keys.shape[0], -1, width)
        outputs, self.source_weights = attend(
            self.layer.encoder_attn, grouped, self.source_keys, self.source_values, self.source_mask
        )
        return outputs.reshape(batch, new_len, -1)


def attend(
    attention: RandomTransformerAttention, query: Tensor, keys: Tensor, values: Tensor, visible: Tensor
) -> tuple[Tensor, Tensor]:
    """Eager attention of queries `[batch, query_len, heads · d_k]`.

    Returns:
        The outputs, `[batch, query_len, heads · d_v]`, and the weights, `[batch, heads, query_len, key_len]`.
    """
    heads = attention.split_heads(query, attention.config.d_k)
    outputs, weights = eager_attention_forward(attention, heads, keys, values, visible, attention.scaling)
    return outputs.flatten(2), weights
