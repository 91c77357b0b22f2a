"""The model as two graphs: one encodes the source, the other takes a step of the target.

The modules compute here what they compute in the model, but with every size left open. Beams of a source share its keys
and values, as in `generate()`.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor, nn

from ..modeling_random_transformer import (
    LearnedPositions,
    RandomTransformerAttention,
    RandomTransformerForConditionalGeneration,
    RandomTransformerStack,
    SinusoidalPositions,
    eager_attention_forward,
)


class EncoderGraph(nn.Module):
    """Encodes the source, and projects it to the keys and values of all blocks of the decoder."""

    def __init__(self, model: RandomTransformerForConditionalGeneration):
        super().__init__()
        self.model = model

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> tuple[Tensor, ...]:
        """Ids and mask `[sources, source_len]` → keys and values in turn, `[sources, heads, source_len, width]`."""
        encoder, decoder = self.model.model.encoder, self.model.model.decoder
        states = embed(encoder, input_ids, torch.arange(input_ids.shape[1]))
        seen = attention_mask[:, None, None] != 0

        def attend_to_source(attention: RandomTransformerAttention, states: Tensor) -> Tensor:
            keys, values = attention.project_keys_and_values(states)
            return attend(attention, states, keys, values, seen)

        for layer in encoder.layers:
            states = layer.add_and_norm(states, layer.self_attn_layer_norm, partial(attend_to_source, layer.self_attn))
            states = layer.add_and_norm(states, layer.final_layer_norm, layer.feed_forward)
        states = encoder.layer_norm(states)
        return tuple(part for layer in decoder.layers for part in layer.encoder_attn.project_keys_and_values(states))


class DecoderGraph(nn.Module):
    """Takes the tokens that a target has got anew, the first ones or one more."""

    def __init__(self, model: RandomTransformerForConditionalGeneration):
        super().__init__()
        self.model = model

    def forward(
        self, decoder_input_ids: Tensor, attention_mask: Tensor, source: Sequence[Tensor], past: Sequence[Tensor]
    ) -> tuple[Tensor, ...]:
        """Score the next token after each of the new ones.

        Args:
            decoder_input_ids: `[sources, beams, new_len]`.
            attention_mask: that of the source, `[sources, source_len]`.
            source: the encoder's keys and values.
            past: those of the target so far, `[sources, beams, heads, past_len, width]` each; `past_len` may be 0.

        Returns:
            Logits `[sources, beams, new_len, vocab_size]`, then `past` with the new tokens.
        """
        decoder = self.model.model.decoder
        sources, beams, new_len = decoder_input_ids.shape
        new = torch.arange(past[0].shape[3], past[0].shape[3] + new_len)
        causal = torch.arange(past[0].shape[3] + new_len) <= new[:, None]  # [new_len, past_len + new_len]
        in_source = attention_mask[:, None, None] != 0
        present: list[Tensor] = []

        def attend_to_target(attention: RandomTransformerAttention, states: Tensor) -> Tensor:
            seen = past[len(present) : len(present) + 2]
            pairs = zip(seen, attention.project_keys_and_values(states), strict=True)
            keys, values = (torch.cat([old.flatten(0, 1), added], dim=2) for old, added in pairs)
            present.extend((keys, values))
            return attend(attention, states, keys, values, causal[None, None])

        def attend_to_source(attention: RandomTransformerAttention, states: Tensor) -> Tensor:
            keys, values = source[len(present) - 2 : len(present)]
            grouped = states.reshape(sources, beams * new_len, -1)
            return attend(attention, grouped, keys, values, in_source).reshape(states.shape)

        states = embed(decoder, decoder_input_ids.flatten(0, 1), new)
        for layer in decoder.layers:
            own, cross = partial(attend_to_target, layer.self_attn), partial(attend_to_source, layer.encoder_attn)
            states = layer.add_and_norm(states, layer.self_attn_layer_norm, own)
            states = layer.add_and_norm(states, layer.encoder_attn_layer_norm, cross)
            states = layer.add_and_norm(states, layer.final_layer_norm, layer.feed_forward)
        logits = self.model.lm_head(decoder.layer_norm(states))
        return tuple(rows.unflatten(0, (sources, beams)) for rows in (logits, *present))


def embed(stack: RandomTransformerStack, ids: Tensor, indices: Tensor) -> Tensor:
    """Embeddings of tokens at these indices of a sequence: `[batch, length]`, `[length]` → `[batch, length, d_model]`.

    Positions are looked up or computed at their indices, so that no length is built into the graph.
    """
    states, positions = stack.embed_tokens(ids) * stack.embed_scale, stack.embed_positions
    if isinstance(positions, LearnedPositions):
        return states + positions.weight[indices + stack.config.position_offset]
    if isinstance(positions, SinusoidalPositions):
        return states + positions.encode(indices)
    return states


def attend(attention: RandomTransformerAttention, states: Tensor, keys: Tensor, values: Tensor, seen: Tensor) -> Tensor:
    """Attention of `states`, `[batch, query_len, d_model]`, to the keys that `seen` shows them, by the reference."""
    queries = attention.split_heads(attention.q_proj(states), attention.config.d_k)
    outputs, _ = eager_attention_forward(attention, queries, keys, values, seen, attention.scaling)
    return attention.out_proj(outputs.flatten(2))
