"""How `generate()` computes one more token: the decoder in a straight line, on keys and values that are never copied.

The search itself (greedy, sampling, beams, stopping, logits processors) is transformers'. Here is the work between two
of its choices, where modules would spend most of their time on calls, masks and copies: the decoder's blocks as plain
operations, and keys and values that grow in place and that beams re-order by index.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation import (
    EosTokenCriteria,
    GenerationMixin,
    LogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    StoppingCriteriaList,
)
from transformers.generation.configuration_utils import GenerationConfig, GenerationMode
from transformers.modeling_layers import GradientCheckpointingLayer

from .linear_random_transformer import PACKING_PAYS, adding, bare, hooked, joined, multiplies

TOKEN_BY_TOKEN = {
    GenerationMode.GREEDY_SEARCH,
    GenerationMode.SAMPLE,
    GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
}
WAITS = (MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor)
MANY_KEYS = 2**17  # elements of the keys; with fewer, attention by plain products has no advantage anywhere
FIRST_ROOM = 64  # tokens that a target has room for at first; doubled when they are used up


class Slots:
    """Where the keys and values of the target lie, and which of them each beam descends from.

    The beams of a source share one row: slot `t · beams + b` is what beam `b` was at token `t`. When the search
    re-orders its beams, keys and values stay; only the mask follows, which shows a beam the slots of its ancestors.
    """

    def __init__(self, rows: int, beams: int, length: int, limit: int, like: Tensor):
        self.groups = rows // beams
        self.beams = beams
        self.length = length  # tokens so far
        self.limit = max(limit, length + 1)  # tokens in the end
        self.room = min(self.limit, max(FIRST_ROOM, 2 * length))  # tokens that there is memory for
        self.mask = None if beams == 1 else self.own_slots(self.room, like)

    def own_slots(self, tokens: int, like: Tensor) -> Tensor:
        """0 where a beam is itself and -inf elsewhere, `[groups, 1, beams, tokens · beams]`, of the dtype of `like`."""
        own = torch.full((self.beams, self.beams), -torch.inf, dtype=like.dtype, device=like.device)
        return own.fill_diagonal_(0).repeat(1, tokens).repeat(self.groups, 1, 1)[:, None]

    def grow(self) -> None:
        """Make room for twice as many tokens, but not for more than there should be."""
        more = min(self.limit, 2 * self.room) - self.room or self.room
        self.room += more
        if self.mask is not None:
            self.mask = torch.cat([self.mask, self.own_slots(more, self.mask)], dim=-1)

    def reorder(self, beam_idx: Tensor) -> None:
        """Row `i` of the batch now continues what was row `beam_idx[i]`, a beam of the same source."""
        if self.mask is not None:
            seen = self.mask[..., : self.length * self.beams]
            seen.copy_(seen.flatten(0, 2)[beam_idx].view(seen.shape))

    def split(self, projected: Tensor, width: int) -> Tensor:
        """`[rows, heads · width]` → `[groups, heads, beams, width]`."""
        return projected.view(self.groups, self.beams, -1, width).transpose(1, 2)

    def place(self, states: Tensor) -> Tensor:
        """Cached states `[rows, heads, length, width]` → `[groups, heads, slots, width]`, with room for more."""
        _, heads, length, width = states.shape
        placed = states.new_empty(self.groups, heads, self.room * self.beams, width)
        old = states.unflatten(0, (self.groups, self.beams)).permute(0, 2, 3, 1, 4)  # a token's beams side by side
        placed[:, :, : length * self.beams] = old.flatten(2, 3)
        return placed

    def enlarge(self, placed: Tensor) -> Tensor:
        """The same slots in memory for `room` tokens."""
        used = self.length * self.beams
        larger = placed.new_empty(*placed.shape[:2], self.room * self.beams, placed.shape[3])
        larger[:, :, :used] = placed[:, :, :used]
        return larger

    def collect(self, placed: Tensor) -> Tensor:
        """The reverse of `place`: every row's own states, `[rows, heads, length, width]`."""
        used = placed[:, :, : self.length * self.beams]
        if self.mask is None:
            return used
        seen = self.mask[:, 0, :, : used.shape[2]].unflatten(2, (self.length, self.beams))
        slots = seen.argmax(dim=3) + torch.arange(0, used.shape[2], self.beams, device=used.device)
        rows = torch.arange(self.groups, device=used.device)[:, None, None]
        return used.transpose(1, 2)[rows, slots].transpose(2, 3).flatten(0, 1)


class IncrementalBlock:
    """A block of the decoder for one new token a row: the operations of `RandomTransformerDecoderLayer`, in its order.

    Args:
        layer: the block.
        target: its keys and values of the target, as `slots.place` puts them.
        source: those of the source, `[sources, heads, source_len, width]`.
        source_mask: 0 where a source may be seen and -inf elsewhere, `[sources, 1, 1, source_len]`, if it hides any.
        slots: which of the target's are whose.
        rows: pack the weights for so many rows; 0 leaves them as they lie.
    """

    def __init__(
        self,
        layer: Any,
        target: tuple[Tensor, Tensor],
        source: Any,
        source_mask: Tensor | None,
        slots: Slots,
        rows: int,
    ):
        self.attend = attend if fused_attention_is_slow(source.keys, source_mask) else attend_fused
        self.slots = slots
        self.keys, self.values = target
        self.norm_first = layer.config.norm_order == "pre"
        self.width, self.scale = layer.config.d_k, layer.self_attn.scaling
        self.value_width = layer.config.d_v
        attention, cross_attention = layer.self_attn, layer.encoder_attn
        self.project = joined((attention.q_proj, attention.k_proj, attention.v_proj), rows)
        self.output, self.norm = adding(attention.out_proj, rows), bare(layer.self_attn_layer_norm)
        self.source_query, self.source_norm = bare(cross_attention.q_proj, rows), bare(layer.encoder_attn_layer_norm)
        self.source_output = adding(cross_attention.out_proj, rows)
        self.source_keys, self.source_values, self.source_mask = source.keys, source.values, source_mask
        if self.attend is attend:
            self.source_keys, self.source_values = source.keys.contiguous(), source.values.contiguous()
        self.inner, self.activation, self.outer = bare(layer.fc1, rows), layer.activation_fn, adding(layer.fc2, rows)
        self.final_norm = bare(layer.final_layer_norm)

    def __call__(self, states: Tensor) -> Tensor:
        """`[rows, d_model]` in and out."""
        states = self.add_and_norm(states, self.norm, self.attend_to_target, self.output)
        states = self.add_and_norm(states, self.source_norm, self.attend_to_source, self.source_output)
        return self.add_and_norm(states, self.final_norm, self.feed_forward, self.outer)

    def add_and_norm(self, states: Tensor, norm: Callable, sublayer: Callable, output: Callable) -> Tensor:
        """The residual connection around a sub-layer (paper 3.1), whose `output` layer adds to the residual."""
        if self.norm_first:
            return output(states, sublayer(norm(states)))
        return norm(output(states, sublayer(states)))

    def attend_to_target(self, states: Tensor) -> Tensor:
        """Self-attention: the new token's key and value join the others, and it attends to all that its beam sees."""
        slots = self.slots
        new, end = slots.length * slots.beams, (slots.length + 1) * slots.beams
        query, key, value = self.project(states)
        query = slots.split(query, self.width)
        self.keys.narrow(2, new, slots.beams).copy_(slots.split(key, self.width))
        self.values.narrow(2, new, slots.beams).copy_(slots.split(value, self.value_width))
        keys, values = self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)
        mask = None if slots.mask is None else slots.mask.narrow(3, 0, end)
        return self.attend(query, keys, values, mask, self.scale).transpose(1, 2).reshape(len(states), -1)

    def attend_to_source(self, states: Tensor) -> Tensor:
        """Cross-attention: the rows that share a source ask the same keys."""
        query = self.source_query(states).view(len(self.source_keys), -1, self.source_keys.shape[1], self.width)
        source = (self.source_keys, self.source_values, self.source_mask)
        return self.attend(query.transpose(1, 2), *source, self.scale).transpose(1, 2).reshape(len(states), -1)

    def feed_forward(self, states: Tensor) -> Tensor:
        """The inner layer of the feed-forward network (paper 3.3)."""
        return self.activation(self.inner(states))

    def enlarge(self) -> None:
        self.keys, self.values = self.slots.enlarge(self.keys), self.slots.enlarge(self.values)


class IncrementalDecoder:
    """Decoder and output layer for one new token a row, after a first pass has cached the target's beginning.

    Args:
        decoder: the decoder.
        lm_head: the output layer.
        cache: what that pass has cached.
        padding_mask: 1 for source tokens, 0 for padding, `[sources, source_len]`.
        beams: consecutive rows among which the search re-orders.
        limit: tokens that the target has in the end.
    """

    def __init__(
        self,
        decoder: Any,
        lm_head: nn.Module,
        cache: EncoderDecoderCache,
        padding_mask: Tensor | None,
        beams: int,
        limit: int,
    ):
        target, source = cache.self_attention_cache.layers, cache.cross_attention_cache.layers
        keys = target[0].keys
        self.slots = Slots(len(keys), beams, keys.shape[2], limit, keys)
        mask = hide_padding(padding_mask, keys.dtype)
        rows = len(keys) if limit - keys.shape[2] >= PACKING_PAYS else 0
        self.lm_head = bare(lm_head, rows)
        placed = [(self.slots.place(layer.keys), self.slots.place(layer.values)) for layer in target]
        stacked = zip(decoder.layers, placed, source, strict=True)
        self.blocks = [IncrementalBlock(layer, own, cross, mask, self.slots, rows) for layer, own, cross in stacked]
        self.embed_tokens, self.scale = decoder.embed_tokens, decoder.embed_scale
        self.embed_positions, self.norm = decoder.embed_positions, decoder.layer_norm

    def __call__(self, ids: Tensor) -> Tensor:
        """The newest tokens `[rows, 1]` → the logits of the next, `[rows, 1, vocab_size]`."""
        slots = self.slots
        if slots.length == slots.room:
            slots.grow()
            for block in self.blocks:
                block.enlarge()
        states = self.embed_tokens(ids[:, 0]) * self.scale
        if self.embed_positions is not None:
            states = states + self.embed_positions(slots.length, 1, slots.length + 1).to(states.dtype)
        for block in self.blocks:
            states = block(states)
        slots.length += 1
        return self.lm_head(self.norm(states)[:, None])

    def collect(self) -> DynamicCache:
        """The target's keys and values as a cache of the library's own."""
        cache = DynamicCache()
        for i, block in enumerate(self.blocks):
            cache.update(self.slots.collect(block.keys), self.slots.collect(block.values), i)
        return cache


def attend_fused(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """Attention (paper 3.2.1) of queries `[groups, heads, beams, width]` by PyTorch's kernel."""
    return scaled_dot_product_attention(query, keys, values, mask, scale=scale)


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """The same by plain products, where the keys are many enough."""
    if keys.numel() < MANY_KEYS:
        return attend_fused(query, keys, values, mask, scale)
    scores = torch.matmul(query * scale, keys.contiguous().transpose(2, 3))  # contiguous: or oneDNN copies it, slowly
    weights = (scores if mask is None else scores.add_(mask)).softmax(dim=-1)
    return torch.matmul(weights, values)


def fused_attention_is_slow(keys: Tensor, mask: Tensor | None) -> bool:
    """Whether plain products are faster for a query or a few: on a CPU in half precision, up to five times.

    They have no answer where a mask hides all keys.
    """
    half = keys.is_cpu and keys.element_size() < 4 and multiplies(keys.dtype)
    return half and (mask is None or not mask.isneginf().all(dim=-1).any())


def hide_padding(padding_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """1 for tokens, 0 for padding, `[sources, source_len]` → what scores are added, `[sources, 1, 1, source_len]`."""
    if padding_mask is None or padding_mask.all():
        return None
    hidden = padding_mask[:, None, None] == 0
    return torch.zeros(hidden.shape, dtype=dtype, device=hidden.device).masked_fill(hidden, -torch.inf)


class NoEarlyEnd(LogitsProcessor):
    """What `min_length` and `min_new_tokens` ask for: no end token before so many tokens.

    The library's own copies all scores twice, for each of the two options and at each step; here only the end tokens'
    are touched, in place.
    """

    def __init__(self, waits: list[Any], vocab_size: int):
        ends = {self.least_length(wait): wait.eos_token_id for wait in waits}
        self.ends = {length: tokens[tokens < vocab_size] for length, tokens in ends.items()}

    @staticmethod
    def least_length(wait: MinLengthLogitsProcessor | MinNewTokensLengthLogitsProcessor) -> int:
        """The fewest tokens a target may have, its beginning included."""
        if isinstance(wait, MinLengthLogitsProcessor):
            return wait.min_length
        return wait.prompt_length_to_skip + wait.min_new_tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[rows, vocab_size]` of the next token after `input_ids`, `[rows, length]`."""
        for length, ends in self.ends.items():
            if input_ids.shape[1] < length:
                scores.index_fill_(1, ends, -torch.inf)
        return scores


class EndToken(EosTokenCriteria):
    """The library's criterion, by comparison: `torch.isin` takes many times as long for a few tokens."""

    def __call__(self, input_ids: Tensor, scores: Any, new_token_length: int = 1, **kwargs: Any) -> Tensor:
        """Which rows of `input_ids`, `[rows, length]`, have an end token among their last `new_token_length`."""
        newest = input_ids[:, -new_token_length:, None]
        return (newest == self.eos_token_id.to(newest.device)).flatten(1).any(dim=1)


class DecodingCache(EncoderDecoderCache):
    """The library's cache for the first pass of `generate()`, then the keys and values of an `IncrementalDecoder`."""

    is_croppable = False

    def __init__(self, beams: int, limit: int):
        super().__init__(DynamicCache(), DynamicCache())
        self.beams, self.limit = beams, limit
        self.decoder: IncrementalDecoder | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return super().get_seq_length(layer_idx) if self.decoder is None else self.decoder.slots.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow the beams, in the target only."""
        if self.decoder is None:
            self.self_attention_cache.reorder_cache(beam_idx)
        else:
            self.decoder.slots.reorder(beam_idx)

    def as_library_cache(self) -> EncoderDecoderCache:
        """What was computed, for callers of `generate()` who ask for `past_key_values`."""
        own = self.self_attention_cache if self.decoder is None else self.decoder.collect()
        return EncoderDecoderCache(own, self.cross_attention_cache)


class RandomTransformerGenerationMixin(GenerationMixin):
    """The library's `generate()`, whose steps of one token go through an `IncrementalDecoder` where that is the same.

    It is not where somebody looks on or computes otherwise: with attention weights or hidden states asked for, hooks,
    dropout, another attention than SDPA, another cache than the library's default, or a mask on the target.
    """

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The library's. As it calls the encoder on its own, FSDP2 has to gather the root's weights for all of it."""
        if torch.distributed.is_available() and torch.distributed.is_initialized() and "generate" not in vars(self):
            from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

            if isinstance(self, FSDPModule):
                register_fsdp_forward_method(self, "generate")
                return self.generate(*args, **kwargs)
        outputs = super().generate(*args, **kwargs)
        if isinstance(getattr(outputs, "past_key_values", None), DecodingCache):
            outputs.past_key_values = outputs.past_key_values.as_library_cache()
        return outputs

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        """The library's cache, or one whose steps an `IncrementalDecoder` takes."""
        own = "past_key_values" not in model_kwargs and generation_config.cache_implementation in (None, "dynamic")
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )
        watched = generation_config.output_attentions or generation_config.output_hidden_states
        known = {"past_key_values", "encoder_outputs", "attention_mask", "logits_to_keep", "use_cache"}
        known |= {name for name, value in model_kwargs.items() if value is None}
        wanted = own and generation_mode in TOKEN_BY_TOKEN and not watched and known.issuperset(model_kwargs)
        if wanted and "past_key_values" in model_kwargs and self.runs_as_written():
            model_kwargs["past_key_values"] = DecodingCache(generation_config.num_beams, max_cache_length)

    def runs_as_written(self) -> bool:
        """Whether the decoder's blocks do what they say, no more and no less."""
        containers = [self.model, self.model.decoder]
        for layer in self.model.decoder.layers:
            containers += [layer, layer.self_attn, layer.encoder_attn]
        plain = all(isinstance(layer, GradientCheckpointingLayer) for layer in self.model.decoder.layers)
        sdpa = self.config._attn_implementation == "sdpa"
        return plain and sdpa and not self.training and not any(map(hooked, containers))

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """What `forward` gets: everything at first, then only the newest token and the cache that knows the rest."""
        if not isinstance(past_key_values, DecodingCache) or not past_key_values.get_seq_length():
            given = {"past_key_values": past_key_values, "attention_mask": attention_mask, **kwargs}
            return super().prepare_inputs_for_generation(input_ids, next_sequence_length, **given)
        cache = past_key_values
        if cache.decoder is None:
            cached = (cache, attention_mask, cache.beams, cache.limit)
            cache.decoder = IncrementalDecoder(self.model.decoder, self.lm_head, *cached)
        return {"decoder_input_ids": input_ids[:, -1:], "past_key_values": cache}

    def _get_logits_processor(self, generation_config: GenerationConfig, *args: Any, **kwargs: Any) -> Any:
        """The library's, with those that forbid an early end by one that does so in place."""
        processors = super()._get_logits_processor(generation_config, *args, **kwargs)
        waits = [processor for processor in processors if type(processor) in WAITS]
        if waits and not generation_config.output_logits:  # these would be changed in place
            processors[processors.index(waits[0])] = NoEarlyEnd(waits, self.config.vocab_size)
            processors = type(processors)(p for p in processors if p not in waits)
        return processors

    def _get_stopping_criteria(self, *args: Any, **kwargs: Any) -> StoppingCriteriaList:
        """The library's, with the one for end tokens by a faster one."""
        criteria = super()._get_stopping_criteria(*args, **kwargs)
        return type(criteria)(EndToken(c.eos_token_id) if type(c) is EosTokenCriteria else c for c in criteria)

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, is_encoder_decoder: bool = False, input_ids: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """Give each source `expand_size` target rows. The source itself is not copied: its rows share it."""
        sources: dict[str, Any] = {name: kwargs.pop(name, None) for name in ("encoder_outputs", "attention_mask")}
        input_ids, kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **kwargs)
        return input_ids, {**kwargs, **sources}

    def _reorder_cache(self, past_key_values: EncoderDecoderCache, beam_idx: Tensor) -> EncoderDecoderCache:
        """Follow the beams. They move within one source only, so its keys and values stay where they are."""
        own = isinstance(past_key_values, DecodingCache)
        (past_key_values if own else past_key_values.self_attention_cache).reorder_cache(beam_idx)
        return past_key_values
