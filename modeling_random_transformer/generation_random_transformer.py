"""`generate()` with a KV cache for beams and a fast single-token decoder step.

transformers implements the search (greedy, sampling, beams, stopping, logits processors). This file speeds up the
decoder steps, in which modules spend most of the time on calls, masks and copies. Here, the decoder layers run as plain
functions on a KV cache that grows in place and reorders beams through its mask.
"""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from functools import cached_property
from types import MethodType
from typing import Any, Protocol
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, scaled_dot_product_attention
from transformers import logging
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.generation.configuration_utils import GenerationConfig, GenerationMode
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils import ModelOutput

from .ops_random_transformer import (
    MIN_STEPS_TO_PACK,
    PackedLinear,
    can_pack,
    float32_precisions,
    forward_hooks,
    has_modified_call,
    is_plain,
    is_unmodified,
    keep_freed_memory,
    matmul_attention,
    prefer_matmul_attention_for_decoding,
    trailing_true,
)
from .quantization_random_transformer import Int8Linear, PackedInt8Linear, packed_int8_linear
from .verification_random_transformer import (
    INEXACT_ROUNDING,
    VERIFICATION,
    Snapshot,
    VerifiedGenerationMixin,
    context_value,
    difference,
    generation_option,
    has_float_weights,
    is_copied,
    library_of,
)
from .versions_random_transformer import (
    CACHE_NAME,
    UNTESTED_ADVICE,
    accepts_cache,
    cache_of,
    is_untested_version,
    named_cache,
)

logger = logging.get_logger(__name__)

SUPPORTED_MODES = {
    GenerationMode.GREEDY_SEARCH,
    GenerationMode.SAMPLE,
    GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
}
# Arguments of generate() that have no effect after the first pass. The values of the target's mask are checked.
FIRST_PASS_ARGUMENTS = {
    "attention_mask",
    "decoder_attention_mask",
    "encoder_outputs",
    "inputs_embeds",
    "labels",
    "logits_to_keep",
    "num_items_in_batch",
    "use_cache",
}
CACHE_KINDS = (None, "dynamic", "static")  # cache_implementation of generate()
INITIAL_CAPACITY = 64  # tokens for which a KV cache is allocated
SMALLEST_BUCKET = 32  # capacity of a static KV cache, in tokens
WARM_UP_STEPS = 3  # steps that run before a CUDA graph is captured
TOKENS_BEFORE_STEP = 512  # target tokens before the step that is compared with the modules
MAX_CAPTURED_STEPS = 8  # CUDA graphs and their tensors that are kept for each model
MAX_DEFAULT_ENTRIES = 2**15  # target tokens of the cache of a graph that is captured by default
MAX_PATIENCE = 100  # beam search ends before this many hypotheses per beam have finished
COMPACTION_INTERVAL = 8  # decoding steps
TOP_K_BLOCK = 128  # scores per block of `block_top_k`
MIN_BLOCK_TOP_K = 2**17  # scores; for fewer, `torch.topk` is as fast


# KV cache and decoder step


LayerStates = Sequence[tuple[Tensor, Tensor]]  # keys and values of each layer, [batch, heads, length, d_k or d_v]


class BeamKVCache:
    """KV cache of the target for all decoder layers, in which beams of one source share a row of entries.

    Each step appends one entry per beam. When the search reorders its beams, keys and values are not moved. Only the
    attention mask changes, so that each beam attends to the entries of its ancestors. Beams soon descend from the same
    earlier tokens, and most entries have no descendants. On a CPU, such entries are removed every few steps.
    The capacity is allocated in advance and doubled when it is full.

    Args:
        layers: keys and values per layer, `[batch, heads, length, d_k or d_v]`.
        beams: number of consecutive batch rows that the search reorders among themselves.
        capacity: a fixed capacity in tokens. When `None`, the capacity starts at twice the length and grows.
    """

    def __init__(self, layers: LayerStates, beams: int, capacity: int | None = None):
        first_keys, _ = layers[0]
        self.beams = beams
        self.groups = len(first_keys) // beams
        self.length = first_keys.shape[2]  # tokens so far
        self.entries = self.length * beams  # entries per group that are in use
        self.capacity = (capacity or max(INITIAL_CAPACITY, 2 * self.length)) * beams  # in entries per group
        self.keys = [self.interleave_beams(keys) for keys, _ in layers]
        self.values = [self.interleave_beams(values) for _, values in layers]
        # The mask of one token's entries: 0 for the entry of the beam itself, -inf for the entries of other beams.
        self.token_mask = first_keys.new_full((beams, beams), -torch.inf).fill_diagonal_(0)
        self.mask: Tensor | None = None
        if beams > 1 or capacity is not None:  # otherwise, every row attends to all entries in use
            self.mask = first_keys.new_full((self.groups, 1, beams, self.capacity), -torch.inf)
            self.mask[..., : self.entries] = self.token_mask.repeat(1, self.length)

    def reserve(self) -> None:
        """Allocate the next token's entries, and set their mask."""
        # On a GPU, reading the number of remaining entries would synchronize.
        if self.mask is not None and self.mask.is_cpu and self.length % COMPACTION_INTERVAL == 0:
            self.compact()
        if self.entries + self.beams > self.capacity:
            self.double_capacity()
        if self.mask is not None:
            self.mask.narrow(3, self.entries, self.beams).copy_(self.token_mask)

    def double_capacity(self) -> None:
        """Double the capacity with uninitialized memory."""
        self.capacity *= 2
        self.keys = [torch.cat([keys, torch.empty_like(keys)], dim=2) for keys in self.keys]
        self.values = [torch.cat([values, torch.empty_like(values)], dim=2) for values in self.values]
        if self.mask is not None:
            self.mask = torch.cat([self.mask, torch.empty_like(self.mask)], dim=3)

    def compact(self) -> None:
        """Remove the entries that no beam attends to, if they are at least a quarter of all entries.

        The remaining entries keep their order. All groups keep the same number, so some of them are masked.
        """
        assert self.mask is not None
        live = (self.mask[:, 0, :, : self.entries] == 0).any(dim=1)  # [groups, entries]
        remaining = int(live.sum(dim=1).max())
        if remaining > 0.75 * self.entries:
            return
        live_first = live.to(torch.uint8).argsort(dim=1, descending=True, stable=True)
        kept = live_first[:, :remaining]
        for entries_by_group in (*self.keys, *self.values, self.mask.transpose(2, 3)):
            entries_by_group[:, :, :remaining] = select_entries(entries_by_group, kept)
        self.entries = remaining

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Write the new token's key and value, `[groups, heads, beams, d_k or d_v]`, after the entries in use.

        Returns all keys and values, `[groups, heads, entries, d_k or d_v]`, and the mask `[groups, 1, beams, entries]`.
        `advance` increases the length after all layers have appended.
        """
        keys = self.keys[layer]
        values = self.values[layer]
        keys.narrow(2, self.entries, self.beams).copy_(key)
        values.narrow(2, self.entries, self.beams).copy_(value)
        end = self.entries + self.beams
        keys = keys.narrow(2, 0, end)
        values = values.narrow(2, 0, end)
        if self.mask is None:
            return keys, values, None
        return keys, values, self.mask.narrow(3, 0, end)

    def advance(self) -> None:
        """Increase the length by the token that every layer has appended."""
        self.length += 1
        self.entries += self.beams

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Let row `i` of the batch continue row `beam_idx[i]`, a beam of the same source."""
        if self.mask is not None:
            seen = self.mask[..., : self.entries]
            reordered = seen.flatten(0, 2)[beam_idx]
            seen.copy_(reordered.view(seen.shape))

    def next_position(self) -> Tensor:
        """The new token's index in the target, `[1]`."""
        return torch.full((1,), self.length, device=self.keys[0].device)

    def split_heads(self, projected: Tensor, width: int) -> Tensor:
        """`[batch, heads · width]` → `[groups, heads, beams, width]`."""
        return projected.view(self.groups, self.beams, -1, width).transpose(1, 2)

    def interleave_beams(self, states: Tensor) -> Tensor:
        """Keys or values `[batch, heads, length, width]` → `[groups, heads, capacity, width]`."""
        _, heads, _, width = states.shape
        entries_by_group = states.new_empty(self.groups, heads, self.capacity, width)
        by_token = states.unflatten(0, (self.groups, self.beams)).permute(0, 2, 3, 1, 4)  # a token's beams are adjacent
        entries_by_group[:, :, : self.entries] = by_token.flatten(2, 3)
        return entries_by_group

    def separate_beams(self, entries_by_group: Tensor) -> Tensor:
        """The inverse of `interleave_beams`: every row's own keys or values, `[batch, heads, length, width]`."""
        used = entries_by_group[:, :, : self.entries]
        if self.mask is None:
            return used
        visible = self.mask[:, 0, :, : self.entries] == 0  # `length` entries of each beam, in the order of the tokens
        _, _, entries = visible.nonzero().unbind(1)
        entries = entries.view(self.groups, self.beams, self.length)
        groups = torch.arange(self.groups, device=used.device)[:, None, None]
        by_token = used.transpose(1, 2)[groups, entries]  # [groups, beams, length, heads, width]
        return by_token.transpose(2, 3).flatten(0, 1)


def select_entries(entries_by_group: Tensor, entries: Tensor) -> Tensor:
    """Entries `[groups, kept]` of keys, values or mask `[groups, heads, capacity, width]`, by one `index_select`.

    On a CPU, this is ten times as fast as `gather`. Returns `[groups, heads, kept, width]`.
    """
    groups, heads, capacity, width = entries_by_group.shape
    first_rows = torch.arange(0, groups * heads * capacity, capacity, device=entries_by_group.device)
    rows = first_rows.view(groups, heads, 1) + entries[:, None]
    selected = entries_by_group.reshape(-1, width).index_select(0, rows.flatten())
    return selected.view(groups, heads, -1, width)


class StaticKVCache(BeamKVCache):
    """A `BeamKVCache` of fixed capacity for CUDA graphs: steps have equal shapes and read their position on the GPU.

    Attention reads all entries up to the capacity. The mask hides unused entries, which are 0. No entry is removed.

    Args:
        layers: keys and values per layer, `[batch, heads, length, d_k or d_v]`.
        beams: number of consecutive batch rows that the search reorders among themselves.
        max_length: maximum number of tokens.
    """

    mask: Tensor

    def __init__(self, layers: LayerStates, beams: int, max_length: int):
        super().__init__(layers, beams, bucket(max_length))
        for entries_by_group in (*self.keys, *self.values):
            entries_by_group[:, :, self.entries :] = 0
        self.token_mask = self.token_mask.expand(self.groups, 1, beams, beams)
        # The position and the entries of the last token. `reserve` moves both to the new token.
        device = self.mask.device
        self.position = torch.full((1,), self.length - 1, device=device)
        self.token_entries = torch.arange(self.entries - beams, self.entries, device=device)

    def reserve(self) -> None:
        """Move to the next token, and set the mask of its entries."""
        self.position.add_(1)
        self.token_entries.add_(self.beams)
        self.mask.index_copy_(3, self.token_entries, self.token_mask)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """`BeamKVCache.append`, but keys, values and mask have `capacity` entries instead of those in use."""
        keys = self.keys[layer].index_copy_(2, self.token_entries, key)
        values = self.values[layer].index_copy_(2, self.token_entries, value)
        return keys, values, self.mask

    def next_position(self) -> Tensor:
        """The new token's index in the target, `[1]`, which each step changes in place."""
        return self.position


def bucket(length: int) -> int:
    """The capacity for a length: a power of two, so that many lengths share one CUDA graph."""
    return max(SMALLEST_BUCKET, 2 ** (length - 1).bit_length())


class StepAttention(Protocol):
    """The attention of one decoder layer during a step. `generate()` and exported graphs implement it differently.

    Queries, keys and values are the outputs of the projections, `[…, heads · d_k]` or `[…, heads · d_v]`. Both methods
    return the concatenated heads, `[…, heads · d_v]`.
    """

    def attend_to_target(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Append the new tokens' keys and values to the cache and attend to it."""

    def attend_to_source(self, query: Tensor) -> Tensor:
        """Attend to the keys and values of the encoded source."""


class FastDecoderLayer:
    """`RandomTransformerDecoderLayer` as a function of the new tokens' states, without its cache and attention.

    Args:
        layer: the decoder layer.
        batch_size: pack the weights for this number of rows; 0 keeps the unpacked layout.
    """

    def __init__(self, layer: Any, batch_size: int):
        target_attention, source_attention = layer.self_attn, layer.encoder_attn
        self.pre_norm = layer.config.norm_order == "pre"
        self.target_norm = functional_norm(layer.self_attn_layer_norm)
        self.project = fused_linear(
            (target_attention.q_proj, target_attention.k_proj, target_attention.v_proj), batch_size
        )
        self.target_output = functional_linear(target_attention.out_proj, batch_size)
        self.source_norm = functional_norm(layer.encoder_attn_layer_norm)
        self.project_query = functional_linear(source_attention.q_proj, batch_size)
        self.source_output = functional_linear(source_attention.out_proj, batch_size)
        self.final_norm = functional_norm(layer.final_layer_norm)
        self.fc1 = functional_linear(layer.fc1, batch_size)
        self.activation = layer.activation_fn
        self.fc2 = functional_linear(layer.fc2, batch_size)

    def __call__(self, states: Tensor, attention: StepAttention) -> Tensor:
        """`[…, d_model]` in and out."""
        heads = attention.attend_to_target(*self.project(self.norm_before(self.target_norm, states)))
        states = self.norm_after(self.target_norm, self.target_output.add_residual(states, heads))

        heads = attention.attend_to_source(self.project_query(self.norm_before(self.source_norm, states)))
        states = self.norm_after(self.source_norm, self.source_output.add_residual(states, heads))

        inner = self.activation(self.fc1(self.norm_before(self.final_norm, states)))
        return self.norm_after(self.final_norm, self.fc2.add_residual(states, inner))

    def norm_before(self, norm: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
        """The input of a sub-layer, as in `RandomTransformerLayer`."""
        return norm(states) if self.pre_norm else states

    def norm_after(self, norm: Callable[[Tensor], Tensor], states: Tensor) -> Tensor:
        """The output of a sub-layer with its residual, as in `RandomTransformerLayer`."""
        return states if self.pre_norm else norm(states)


class FastDecoder:
    """Decoder and output layer as a function of the newest tokens, for `generate()` and the ONNX export.

    Args:
        decoder: the decoder.
        lm_head: the output layer.
        batch_size: pack the weights for this number of rows; 0 keeps the unpacked layout.
    """

    def __init__(self, decoder: Any, lm_head: nn.Module, batch_size: int = 0):
        self.layers = [FastDecoderLayer(layer, batch_size) for layer in decoder.layers]
        self.norm = functional_norm(decoder.layer_norm)
        self.lm_head = functional_linear(lm_head, batch_size)

    def __call__(self, states: Tensor, attentions: Iterable[StepAttention]) -> Tensor:
        """Embedded tokens `[…, d_model]` and one attention per layer → logits `[…, vocab_size]`."""
        for layer, attention in zip(self.layers, attentions, strict=True):
            states = layer(states, attention)
        return self.lm_head(self.norm(states))


class BeamAttention:
    """Attention of one decoder layer to the beams' KV cache and to the source, for one token per row.

    Args:
        layer: the decoder layer.
        index: its index in the cache.
        cache: keys and values of the target.
        source: keys and values of the source, `[sources, heads, source_len, d_k or d_v]`.
        source_mask: 0 for source tokens, -inf for padding, `[sources, 1, 1, source_len]`; `None` without padding.
    """

    def __init__(
        self, layer: Any, index: int, cache: BeamKVCache, source: tuple[Tensor, Tensor], source_mask: Tensor | None
    ):
        self.index = index
        self.cache = cache
        self.d_k = layer.config.d_k
        self.d_v = layer.config.d_v
        self.target_scale = layer.self_attn.scaling
        self.source_scale = layer.encoder_attn.scaling
        self.source_keys, self.source_values = source
        self.source_mask = source_mask
        self.attend: Callable[..., Tensor] = scaled_dot_product_attention
        if prefer_matmul_attention_for_decoding(self.source_keys, source_mask):
            self.attend = matmul_attention
            self.source_keys = self.source_keys.contiguous()
            self.source_values = self.source_values.contiguous()

    def attend_to_target(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`[batch, heads · d_k]` and `[batch, heads · d_v]` → `[batch, heads · d_v]`."""
        split_heads = self.cache.split_heads
        query_heads = split_heads(query, self.d_k)
        key_heads = split_heads(key, self.d_k)
        value_heads = split_heads(value, self.d_v)
        keys, values, mask = self.cache.append(self.index, key_heads, value_heads)
        outputs = self.attend(query_heads, keys, values, mask, scale=self.target_scale)
        return outputs.transpose(1, 2).reshape(len(query), -1)

    def attend_to_source(self, query: Tensor) -> Tensor:
        """`[batch, heads · d_k]` → `[batch, heads · d_v]`. Rows that share a source share its keys."""
        sources, heads, _, d_k = self.source_keys.shape
        query_heads = query.view(sources, -1, heads, d_k).transpose(1, 2)
        outputs = self.attend(
            query_heads, self.source_keys, self.source_values, self.source_mask, scale=self.source_scale
        )
        return outputs.transpose(1, 2).reshape(len(query), -1)


def additive_padding_mask(padding_mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """1 for tokens and 0 for padding, `[sources, source_len]` → 0 and -inf, `[sources, 1, 1, source_len]`."""
    if padding_mask is None or padding_mask.all():
        return None
    hidden = padding_mask[:, None, None] == 0
    visible = torch.zeros(hidden.shape, dtype=dtype, device=hidden.device)
    return visible.masked_fill(hidden, -torch.inf)


class FastDecodingCache(EncoderDecoderCache):
    """transformers' cache. When the fast steps begin, the target's keys and values move to the cache of a `FastStep`.

    Args:
        beams: number of consecutive rows that the search reorders among themselves.
        max_length: maximum number of target tokens.
    """

    is_croppable = False

    def __init__(self, beams: int, max_length: int):
        super().__init__(DynamicCache(), DynamicCache())
        self.beams = beams
        self.max_length = max_length
        self.step: FastStep | None = None

    def get_seq_length(self, layer_idx: int = 0) -> int:
        if self.step is not None:
            return self.step.cache.length
        return super().get_seq_length(layer_idx)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the target's rows. The source's rows are unchanged, because beams are reordered within a source."""
        if self.beams == 1:
            self.end_steps()
        target = self.self_attention_cache if self.step is None else self.step.cache
        target.reorder_cache(beam_idx)

    def begin_steps(self, model: Any, padding_mask: Tensor | None) -> "FastStep":
        """The step of this cache, which is created after the modules have filled it."""
        if self.step is None:
            self.step = self.new_step(model, padding_mask)
            self.self_attention_cache = DynamicCache()  # the tensors of the modules' cache have been copied
        return self.step

    def new_step(self, model: Any, padding_mask: Tensor | None) -> "FastStep":
        """A step that continues the tokens of this cache."""
        target = BeamKVCache(layer_states(self.self_attention_cache), self.beams)
        source = layer_states(self.cross_attention_cache)
        mask = additive_padding_mask(padding_mask, source[0][0].dtype)
        return FastStep(model, target, source, mask, self.max_length)

    def end_steps(self) -> None:
        """Return the keys and values to transformers' layout, for the modules and for callers of `generate()`."""
        if self.step is None:
            return
        beam_cache = self.step.cache
        for i, (keys, values) in enumerate(zip(beam_cache.keys, beam_cache.values, strict=True)):
            self.self_attention_cache.update(beam_cache.separate_beams(keys), beam_cache.separate_beams(values), i)
        self.step = None


def layer_states(cache: Cache) -> LayerStates:
    """The keys and values of each layer of transformers' cache, `[batch, heads, length, d_k or d_v]`."""
    return [(layer.keys, layer.values) for layer in cache.layers]


class StaticDecodingCache(FastDecodingCache):
    """A `FastDecodingCache` whose steps keep their shapes, for `cache_implementation="static"`.

    Args:
        beams: number of consecutive rows that the search reorders among themselves.
        max_length: maximum number of target tokens.
        is_captured: run the steps as a CUDA graph.
    """

    def __init__(self, beams: int, max_length: int, is_captured: bool):
        super().__init__(beams, max_length)
        self.is_captured = is_captured

    def new_step(self, model: Any, padding_mask: Tensor | None) -> "FastStep":
        """A step on a `StaticKVCache` and on a source that is padded to the capacity of a bucket."""
        target = StaticKVCache(layer_states(self.self_attention_cache), self.beams, self.max_length)
        source = layer_states(self.cross_attention_cache)
        first_keys, _ = source[0]
        sources, _, length, _ = first_keys.shape
        mask = additive_padding_mask(padding_mask, first_keys.dtype)
        if mask is None:
            mask = first_keys.new_zeros(sources, 1, 1, length)
        added = bucket(length) - length
        mask = pad(mask, (0, added), value=-torch.inf)
        padded = [(pad(keys, (0, 0, 0, added)), pad(values, (0, 0, 0, added))) for keys, values in source]
        if self.is_captured:
            return self.captured_step(model, CapturedStep(model, target, padded, mask, self.max_length))
        return FastStep(model, target, padded, mask, self.max_length)

    def captured_step(self, model: Any, step: "CapturedStep") -> "CapturedStep":
        """The captured step of an earlier call with the same shapes, or a new one, which is kept for later calls."""
        kept = captured_steps(model)
        key = step.key()
        earlier = kept.steps.pop(key, None)  # no other call can use it until this one is over
        if earlier is not None:
            earlier.load(step)
            step = earlier
        finalize(self, kept.keep, key, step)
        return step


class FastStep:
    """One decoder step after the first pass: the `step` that `generate()` passes to the model's `forward`.

    Args:
        model: the model.
        cache: the keys and values of all earlier tokens.
        source: the keys and values of the source per layer, `[sources, heads, source_len, d_k or d_v]`.
        source_mask: 0 for source tokens, -inf for padding, `[sources, 1, 1, source_len]`; `None` without padding.
        max_length: maximum number of target tokens. The weights are packed if enough steps remain.
    """

    def __init__(
        self,
        model: Any,
        cache: BeamKVCache,
        source: LayerStates,
        source_mask: Tensor | None,
        max_length: int,
    ):
        self.decoder = model.model.decoder
        self.lm_head = model.lm_head
        self.cache = cache
        packs_weights = max_length - cache.length >= MIN_STEPS_TO_PACK
        self.batch_size = cache.groups * cache.beams if packs_weights else 0
        self.attentions = [
            BeamAttention(layer, i, cache, layer_source, source_mask)
            for i, (layer, layer_source) in enumerate(zip(self.decoder.layers, source, strict=True))
        ]

    @cached_property
    def fast_decoder(self) -> FastDecoder:
        """Created in the first step: a wrapped `forward` may enable autocast, which layers cannot ignore."""
        return FastDecoder(self.decoder, self.lm_head, self.batch_size)

    def __call__(self, ids: Tensor) -> Tensor:
        """The newest tokens, `[batch, 1]` → logits of the next tokens, `[batch, 1, vocab_size]`."""
        logits = self.compute(ids)
        self.cache.advance()
        return logits[:, None]

    def compute(self, ids: Tensor) -> Tensor:
        """The logits of a step, without a change of Python values: `[batch, 1]` → `[batch, vocab_size]`."""
        self.cache.reserve()
        states = self.decoder.embed(ids, self.cache.next_position(), position_limit=self.cache.length + 1)
        return self.fast_decoder(states[:, 0], self.attentions)


class CapturedStep(FastStep):
    """A `FastStep` on a `StaticKVCache` as a CUDA graph, which launches all kernels at once.

    The graph computes on the tensors with which it was captured. A later call copies its tensors into them.
    """

    cache: StaticKVCache
    graph: Any = None  # torch.cuda.CUDAGraph
    ids: Tensor  # [batch, 1], read by the graph
    logits: Tensor  # [batch, vocab_size], written by the graph

    def compute(self, ids: Tensor) -> Tensor:
        """The graph's logits, which the next step overwrites: `[batch, 1]` → `[batch, vocab_size]`."""
        if torch.is_autocast_enabled(ids.device.type):  # autocast frees its copies of the weights after the step
            return super().compute(ids)
        if self.graph is None:
            self.ids = ids.clone()
            with torch.cuda.device(ids.device):
                self.capture()
        self.ids.copy_(ids)
        self.graph.replay()
        return self.logits

    def capture(self) -> None:
        """Run the step a few times on another stream, as PyTorch requires, and record its kernels."""
        initial = [tensor.clone() for tensor in self.tensors()]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                super().compute(self.ids)
                self.copy_from(initial)
        torch.cuda.current_stream().wait_stream(stream)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # other threads may use the GPU
            self.logits = super().compute(self.ids)

    def tensors(self) -> list[Tensor]:
        """The tensors that the steps of a call read, apart from the weights."""
        cache = self.cache
        tensors = [*cache.keys, *cache.values, cache.mask, cache.position, cache.token_entries]
        for attention in self.attentions:
            assert attention.source_mask is not None
            tensors += [attention.source_keys, attention.source_values, attention.source_mask]
        return tensors

    def key(self) -> tuple[Any, ...]:
        """The shapes and modes of this step: steps with equal keys can use the same graph."""
        layouts = [(tensor.shape, tensor.dtype, tensor.device) for tensor in self.tensors()]
        modes = torch.is_inference_mode_enabled(), float32_precisions()
        return self.cache.beams, *modes, *layouts

    def load(self, step: "CapturedStep") -> None:
        """Continue the tokens of another step."""
        self.copy_from(step.tensors())
        self.cache.length = step.cache.length
        self.cache.entries = step.cache.entries

    def copy_from(self, tensors: Sequence[Tensor]) -> None:
        """Copy another step's tensors into `tensors()`."""
        for tensor, source in zip(self.tensors(), tensors, strict=True):
            tensor.copy_(source)


class CapturedSteps:
    """The captured steps of a model that no call uses, and the sizes of the calls that did not capture one."""

    def __init__(self) -> None:
        self.steps: dict[tuple[Any, ...], CapturedStep] = {}  # by their keys
        self.seen_sizes: set[tuple[int, ...]] = set()

    def keep(self, key: tuple[Any, ...], step: CapturedStep) -> None:
        """Keep a captured step for later calls, and drop the least recently used steps above a limit."""
        if step.graph is not None:
            self.steps[key] = step
        if len(self.steps) > MAX_CAPTURED_STEPS:
            oldest = next(iter(self.steps))
            del self.steps[oldest]

    def record_sizes(self, sizes: tuple[int, ...]) -> bool:
        """Record the sizes of a call; whether an earlier call had them.

        Capturing a graph takes as long as some 30 steps, so it saves time from the second call on. Graphs of many sizes
        or of large caches would need much memory, so such sizes are not recorded.

        Args:
            sizes: `(rows, beams, target capacity, source capacity)`.
        """
        if sizes in self.seen_sizes:
            return True
        rows, _, capacity, _ = sizes
        if len(self.seen_sizes) < MAX_CAPTURED_STEPS and rows * capacity <= MAX_DEFAULT_ENTRIES:
            self.seen_sizes.add(sizes)
        return False


# A graph reads the weights by address, so it is valid as long as the snapshot of its model.
CAPTURED_STEPS: WeakKeyDictionary[Snapshot, CapturedSteps] = WeakKeyDictionary()


def captured_steps(model: Any) -> CapturedSteps:
    """The captured steps of a model in its current state."""
    return CAPTURED_STEPS.setdefault(model.snapshot, CapturedSteps())


def can_capture(model: Any, max_length: int) -> bool:
    """Whether all steps up to a length run the same kernels: on a GPU, and without code of other libraries.

    An attribute can disable an adapter's module, for example, and a wrapped `forward` may enable autocast.
    """
    if model.device.type != "cuda" or max_length > model.config.max_position_embeddings or "forward" in vars(model):
        return False
    for _, module in named_parts(model):
        is_known = library_of(module) in ("torch", "transformers") or is_copied(type(module))
        if not is_known or isinstance(module, Int8Linear):
            return False
    return all(map(is_plain, model.parameters()))


# Functional layers: for the few rows of a decoding step, the overhead of `nn.Module.__call__` dominates the time


class ModuleFunction:
    """Calls an adapter, a module with hooks or a custom module. `[batch, d]` becomes `[batch, 1, d]`."""

    def __init__(self, module: nn.Module):
        self.module = module

    def __call__(self, states: Tensor) -> Tensor:
        if states.dim() == 2:
            return self.module(states[:, None])[:, 0]
        return self.module(states)

    def add_residual(self, residual: Tensor, states: Tensor) -> Tensor:
        """`residual + self(states)`."""
        return residual + self(states)


class PlainLinear:
    """A linear layer with unpacked weights, `[output width, input width]`."""

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self.weight = weight
        self.bias = bias
        self.transposed = weight.t()

    def __call__(self, states: Tensor) -> Tensor:
        return linear(states, self.weight, self.bias)

    def add_residual(self, residual: Tensor, states: Tensor) -> Tensor:
        """`residual + self(states)`, by one product that accumulates into residual + bias."""
        shifted = residual.clone() if self.bias is None else residual + self.bias
        return shifted.addmm_(states, self.transposed)


LinearFunction = PackedLinear | PackedInt8Linear | PlainLinear | ModuleFunction


def functional_linear(module: Any, batch_size: int = 0) -> LinearFunction:
    """Convert a linear layer to a function of its input, with a method that adds the result to a residual.

    Args:
        module: the layer. Other modules are called as modules.
        batch_size: pack the weights for this number of rows; 0 keeps the unpacked layout.
    """
    packed = packed_linear((module,), batch_size)
    if packed is not None:
        return packed
    if is_unmodified(module, Int8Linear) and is_plain(module.weight_scale):
        return PlainLinear(module.dequantized_weight(), module.bias)
    if is_unmodified(module, nn.Linear) and is_plain(module.weight):
        return PlainLinear(module.weight, module.bias)
    return ModuleFunction(module)


def fused_linear(modules: tuple[Any, ...], batch_size: int = 0) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """The outputs of several layers for the same input, by one product if their weights can be packed."""
    packed = packed_linear(modules, batch_size)
    if packed is not None:
        widths = [len(module.weight) for module in modules]
        return lambda states: packed(states).split(widths, dim=-1)
    layers = [functional_linear(module, batch_size) for module in modules]
    return lambda states: tuple(layer(states) for layer in layers)


def packed_linear(modules: tuple[Any, ...], batch_size: int) -> PackedLinear | PackedInt8Linear | None:
    """Linear layers with the same input as one product with packed weights; `None` if they cannot be packed."""
    if all(is_unmodified(module, Int8Linear) for module in modules):
        return packed_int8_linear(modules)
    if batch_size and can_pack(*modules):
        return PackedLinear(modules, batch_size)
    return None


def functional_norm(module: Any) -> Callable[[Tensor], Tensor]:
    """Convert a layer norm to a function of its input. Other modules are called as modules."""
    if not is_unmodified(module, nn.LayerNorm):
        return ModuleFunction(module)
    shape, scale, shift, eps = module.normalized_shape, module.weight, module.bias, module.eps
    return lambda states: torch.layer_norm(states, shape, scale, shift, eps)


# Conditions for the fast decoder: a step computes what the modules compute


def step_reason(model: Any) -> str | None:
    """Why a `FastStep` cannot be used for a model, or computes other logits than the modules; `None` if it can."""
    reason = model_reason(model)
    if reason:
        return reason
    try:
        reason = step_difference(model)
    except Exception as error:  # edited code may raise any error; if the modules fail too, they raise it again
        reason = f"a fast decoder step cannot be compared with the modules: {type(error).__name__}: {error}"
    if reason:
        logger.warning_once("generate() runs the decoder's modules at every step, which is slower: %s.", reason)
    return reason


def model_reason(model: Any) -> str | None:
    """Why a model's hooks, modes or settings require its modules; `None` if they do not.

    Hooks on the model itself and a `forward` that wraps the original are allowed: the step runs inside them.
    """
    decoder = getattr(getattr(model, "model", None), "decoder", None)
    if decoder is None:  # an exported graph or an ensemble
        return f"{type(model).__name__} has no decoder"
    forward = vars(model).get("forward")  # Accelerate's mixed precision replaces it by a method that wraps it
    wraps = isinstance(forward, MethodType) and inspect.unwrap(forward) is inspect.unwrap(type(model).forward)
    if model._compiled_call_impl is not None or not (forward is None or wraps):
        return "forward of the model is replaced or compiled"
    inner_modules = []
    for name, module in named_parts(model):
        if next(module.children(), None) is not None:
            inner_modules.append((name, module))
        elif forward_hooks(module):  # other leaf modules are called; the comparison must not run hooks
            return f"{name} has a hook"
    if reason := modified_module(inner_modules):
        return reason
    for layer in (decoder, *decoder.layers):
        if layer.config._attn_implementation != "sdpa":
            return f"the attention implementation is {layer.config._attn_implementation}, not sdpa"
    return None


def modified_module(named_modules: Iterable[tuple[str, nn.Module]]) -> str | None:
    """Why a module does not compute the `forward` of its class in evaluation mode; `None` if all modules do."""
    for name, module in named_modules:
        if has_modified_call(module):
            return f"{name or 'the model'} has a hook or a replaced or compiled forward"
        if module.training:
            return f"{name or 'the model'} is in training mode"
    return None


def named_parts(model: Any) -> Iterator[tuple[str, nn.Module]]:
    """The modules that a decoder step uses, with their names."""
    yield "model", model.model
    yield from model.model.decoder.named_modules(prefix="decoder")
    yield from model.lm_head.named_modules(prefix="lm_head")


@torch.no_grad()
def step_difference(model: Any) -> str | None:
    """Compare the logits of one token by a `FastStep` and by the modules, for random inputs.

    Two rows share each of two sources, with padding on the left and on the right. To find changes that have no effect
    on short targets, such as a window of attention, `TOKENS_BEFORE_STEP` tokens precede the compared one. Their keys
    and values are those of a first token, times random factors.
    """
    config = model.config
    device = model.device
    seen = min(config.max_position_embeddings - 1, TOKENS_BEFORE_STEP)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size, (4, 2), generator=generator).to(device)
    source = torch.randn(2, 5, config.d_model, generator=generator).to(device, model.dtype)
    factors = torch.randn(seen, 1, generator=generator).to(device, model.dtype)
    padding_mask = torch.tensor([[0, 1, 1, 1, 1], [1, 1, 1, 0, 0]], device=device)

    def logits(ids: Tensor, cache: EncoderDecoderCache, step: FastStep | None = None) -> Tensor:
        outputs = type(model).forward(  # bypasses the hooks on the model itself
            model,
            decoder_input_ids=ids,
            encoder_outputs=(source,),
            attention_mask=padding_mask,
            use_cache=True,
            return_dict=True,
            step=step,
            **named_cache(cache),
        )
        return outputs.logits

    # Modules may draw random numbers.
    with torch.random.fork_rng([device] if device.type == "cuda" else []), torch.autocast(device.type, enabled=False):
        cache = FastDecodingCache(beams=2, max_length=0)
        logits(ids[:, :1], cache)
        for layer in cache.self_attention_cache.layers:
            layer.keys = layer.keys * factors
            layer.values = layer.values * factors
        standard = EncoderDecoderCache(cache.self_attention_cache, cache.cross_attention_cache)
        actual = logits(ids[:, 1:], cache, cache.begin_steps(model, padding_mask))
        expected = logits(ids[:, 1:], standard)
    max_difference = None if has_float_weights(model) else INEXACT_ROUNDING
    return difference(actual, expected, max_difference)


def request_reason(config: GenerationConfig, mode: GenerationMode, model_kwargs: dict[str, Any]) -> str | None:
    """Why a `FastDecoder` does not support the arguments of a call of `generate()`; `None` if it does."""
    verification = VERIFICATION.get()  # the checks of the running call
    if verification is not None and callable(verification.arguments.get("custom_generate")):
        return "custom_generate was requested"
    if mode not in SUPPORTED_MODES:
        return f"the generation mode {mode.value!r} was requested"
    if not config.use_cache:
        return "use_cache=False was requested"
    if config.cache_implementation not in CACHE_KINDS:
        return f"cache_implementation={config.cache_implementation!r} was requested"
    if config.cache_implementation == "static" and config.compile_config is not None:
        return "compile_config was requested"
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(config, name):
            return f"{name} was requested"
    target_mask = model_kwargs.get("decoder_attention_mask")
    if target_mask is not None and not (target_mask.dim() == 2 and target_mask.all()):
        return "decoder_attention_mask was requested"
    arguments = {name for name, value in model_kwargs.items() if value is not None} - FIRST_PASS_ARGUMENTS
    if arguments:
        return f"{', '.join(sorted(arguments))} was requested"
    return None


def decoding_cache(
    model: Any, config: GenerationConfig, max_length: int, source_shape: Sequence[int]
) -> FastDecodingCache:
    """The cache of fast steps for at most `max_length` tokens. `source_shape` is `(sources, source_len, d_model)`."""
    implementation = config.cache_implementation
    is_captured = implementation != "dynamic" and not config.disable_compile and can_capture(model, max_length)
    sources, source_len, _ = source_shape
    rows = sources * max(config.num_beams, config.num_return_sequences)
    sizes = rows, config.num_beams, bucket(max_length), bucket(source_len)
    if implementation == "static" or (is_captured and captured_steps(model).record_sizes(sizes)):
        return StaticDecodingCache(config.num_beams, max_length, is_captured)
    return FastDecodingCache(config.num_beams, max_length)


# A faster equivalent of a part of transformers' search


def block_top_k(scores: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """`scores.topk(k)` for a few of many scores on a CPU, up to six times as fast.

    PyTorch sorts pairs of all scores and indices. Here, one vectorized pass takes the maximum of each block of scores,
    and only the blocks with the highest maxima are sorted. PyTorch's order of equal scores is undefined but
    reproducible, so `scores.topk(k)` is called if the result depends on it.

    Args:
        scores: `[batch, n]`.
        k: number of scores to select per row.

    Returns:
        The highest scores in descending order and their indices, both `[batch, k]`.
    """
    batch, count = scores.shape
    blocks = count // TOP_K_BLOCK
    if not scores.is_cpu or scores.numel() < MIN_BLOCK_TOP_K or blocks < 4 * (k + 1):
        return scores.topk(k)
    head, tail = scores.tensor_split([blocks * TOP_K_BLOCK], dim=1)
    head = head.unflatten(1, (blocks, TOP_K_BLOCK))
    _, best_blocks = head.amax(dim=2).topk(k + 1)  # these blocks and the tail contain the k + 1 highest scores
    selected = head.gather(1, best_blocks[:, :, None].expand(-1, -1, TOP_K_BLOCK))
    candidates = torch.cat([selected.flatten(1), tail], dim=1)
    values, positions = candidates.topk(k + 1)
    is_descending = values[:, :-1] > values[:, 1:]
    if not is_descending.all():  # equal scores, or NaN
        return scores.topk(k)
    tail_block = best_blocks.new_full((batch, 1), blocks)
    candidate_blocks = torch.cat([best_blocks, tail_block], dim=1)
    positions = positions[:, :k]
    block_indices = candidate_blocks.gather(1, positions // TOP_K_BLOCK)
    return values[:, :k], block_indices * TOP_K_BLOCK + positions % TOP_K_BLOCK


# Integration into `generate()`


class FinishedHypotheses:
    """Counts the finished hypotheses of each text in a beam search with `patience`.

    The search for a text ends when `max_finished` hypotheses have finished, and returns the best of them ("A Call for
    Clarity in Beam Search: How It Works and When It Stops", Kasai et al. 2022).

    Args:
        max_finished: the number of beams times the patience.
    """

    def __init__(self, max_finished: int):
        self.max_finished = max_finished
        self.counts: Any = 0  # a tensor [batch, 1] after the first step
        self.was_queried = False  # whether the search has called `are_unfinished`

    def add(self, are_finished: Tensor) -> None:
        """Count the continuations that have finished in a step, a mask `[batch, continuations]`."""
        self.counts = self.counts + are_finished.sum(dim=1, keepdim=True)

    def are_unfinished(self) -> Tensor:
        """The texts whose search has not ended, a mask `[batch, 1]`."""
        self.was_queried = True
        return self.counts < self.max_finished


# The counts of the running call of generate(); `None` without patience.
FINISHED_HYPOTHESES: ContextVar[FinishedHypotheses | None] = ContextVar("finished_hypotheses", default=None)


class RandomTransformerGenerationMixin(VerifiedGenerationMixin):
    """transformers' `generate()`, in which a `FastDecoder` computes single-token steps if the result is the same.

    Otherwise, the modules run at each step, and the reason is logged. The level is debug, or warning if the logits
    differ, as after an edit of the modules' code.
    """

    engine: Any = None  # set by `load_translator`; its `generate` returns `None` for unsupported calls

    def generate(self, inputs: Any = None, generation_config: Any = None, *args: Any, **kwargs: Any) -> Any:
        """`GenerationMixin.generate`. It calls the encoder directly, so FSDP2 must gather the root's weights.

        In addition to transformers' options, beam search has `patience`, as an argument or in the generation config.
        With `early_stopping=True`, the search for a text ends when `num_beams · patience` hypotheses have finished. The
        default is 1. Models that were trained on little data translate better with 2, since their first finished
        hypotheses are too short.

        Raises:
            ValueError: `patience` is invalid.
            RuntimeError: the installed version of transformers gives wrong outputs.
        """
        if registered_for_fsdp(self):
            return self.generate(inputs, generation_config, *args, **kwargs)
        options = {**kwargs, "generation_config": generation_config}
        patience = generation_option(self, options, "patience")
        finished = None if patience is None else finished_hypotheses(self, options, patience)
        if self.engine is not None:
            outputs = self.engine.generate(self, inputs, generation_config, *args, **kwargs)
            if outputs is not None:
                return outputs
        kwargs.pop("patience", None)
        if finished is not None:
            generation_config = without_early_stopping(generation_config, kwargs)
        replace_saved_limit(kwargs)
        with context_value(FINISHED_HYPOTHESES, finished):
            outputs = super().generate(inputs, generation_config, *args, **kwargs)
        if finished is not None and not finished.was_queried:
            raise RuntimeError(f"transformers does not end a beam search by its patience. {UNTESTED_ADVICE}")
        sequences = getattr(outputs, "sequences", outputs)
        if isinstance(sequences, Tensor):  # a decoding loop of the caller may return anything
            padding = generation_option(self, options, "pad_token_id")
            end = generation_option(self, options, "eos_token_id")
            pad_after_end(sequences, padding, end)
        if isinstance(outputs, ModelOutput):
            return_standard_cache(outputs)
        return outputs

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        """Create a `FastDecodingCache` where it is supported, otherwise transformers' cache."""
        reason = request_reason(generation_config, generation_mode, model_kwargs) or self.fallback_reason()
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )
        if reason is None:
            keep_freed_memory()
            sources = model_kwargs["encoder_outputs"][0]
            model_kwargs[CACHE_NAME] = decoding_cache(self, generation_config, max_cache_length, sources.shape)
        else:
            logger.debug("generate() runs the decoder's modules at every step: %s.", reason)

    def fallback_reason(self) -> str | None:
        """Why `generate()` runs the modules at each step; `None` if it uses a `FastDecoder`.

        The first call, and the first call after a change of the model, runs a decoder step both ways and compares the
        logits, because a module of another class may compute the same as the original for some weights only. Under
        tensor parallelism, all processes must call this method, after the same changes.
        """
        verification = self.running_verification
        snapshot = self.renewed_snapshot() if verification is None else verification.snapshot
        return snapshot.reason_of("step", step_reason, self)

    @accepts_cache
    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        cache: Cache | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The inputs of the next pass for targets `[batch, length]`, with the fast decoder's `step` if there is one."""
        if isinstance(cache, FastDecodingCache):
            if next_sequence_length == 1 and cache.get_seq_length() > 0:
                self.record_inputs(input_ids, {**kwargs, "attention_mask": attention_mask, **named_cache(cache)})
                step = cache.begin_steps(self, attention_mask)
                return {"decoder_input_ids": input_ids[:, -1:], "step": step, **named_cache(cache)}
            cache.end_steps()  # the modules process several tokens
        kwargs |= {"attention_mask": attention_mask, **named_cache(cache)}
        return super().prepare_inputs_for_generation(input_ids, next_sequence_length, **kwargs)

    def _get_top_k_continuations(self, accumulated_log_probs: Tensor, **state: Any) -> tuple[Tensor, Tensor, Tensor]:
        """transformers' selection of the best continuations, with `block_top_k` instead of `torch.topk`.

        Log-probabilities are `[batch, beams · vocab_size]`, sequences and beam indices `[batch, beams, length]`.
        """
        if is_untested_version() or state["do_sample"]:
            return super()._get_top_k_continuations(accumulated_log_probs=accumulated_log_probs, **state)
        log_probs, indices = block_top_k(accumulated_log_probs, state["beams_to_keep"])
        batch_size, num_beams, _ = state["running_sequences"].shape
        vocab_size = accumulated_log_probs.shape[1] // num_beams
        parents = indices // vocab_size
        sequences = state["running_sequences"].take_along_dim(parents[..., None], dim=1)
        sequences[:, :, state["cur_len"]] = indices % vocab_size
        beam_indices = state["running_beam_indices"].take_along_dim(parents[..., None], dim=1)
        # Beam indices count the rows of the whole batch.
        first_rows = torch.arange(0, batch_size * num_beams, num_beams, device=parents.device)
        position = state["cur_len"] - state["decoder_prompt_len"]
        beam_indices[:, :, position] = parents + first_rows[:, None]
        return log_probs, sequences, beam_indices

    def _update_finished_beams(self, **state: Any) -> Any:
        """Update the finished hypotheses as transformers does, and count them if the search has patience.

        Masks are `[batch, continuations]`. Only the best `num_beams` continuations can finish.
        """
        finished = FINISHED_HYPOTHESES.get()
        if finished is not None:
            finished.add(state["next_token_hits_stopping_criteria"] & state["top_num_beam_mask"])
        return super()._update_finished_beams(**state)

    def _check_early_stop_heuristic(self, **state: Any) -> Tensor:
        """The texts whose search has not ended, a mask `[batch, 1]`. With patience, only the count decides."""
        finished = FINISHED_HYPOTHESES.get()
        if finished is not None:
            return finished.are_unfinished()
        return super()._check_early_stop_heuristic(**state)

    def _expand_inputs_for_generation(
        self, expand_size: int = 1, is_encoder_decoder: bool = False, input_ids: Tensor | None = None, **kwargs: Any
    ) -> tuple[Tensor | None, dict[str, Any]]:
        """Repeat the target rows `expand_size` times. The source is not copied, since its target rows share it.

        Raises:
            ValueError: the target does not have as many rows as the source, or a multiple; the encoder's output is not
                one; or a cache of the caller has tokens, and the target cannot continue them.
        """
        cache = cache_of(kwargs)
        check_cache(cache)
        if input_ids is not None and cache is not None and cache.get_seq_length() > 0:
            mask = kwargs.get("decoder_attention_mask")
            check_continued_target(input_ids, cache, mask, expand_size)
            # transformers removes the tokens that are in the cache only if there is a mask of the same length.
            kwargs["decoder_attention_mask"] = torch.ones_like(input_ids) if mask is None else mask
        encoder_outputs = kwargs.pop("encoder_outputs", None)
        attention_mask = kwargs.pop("attention_mask", None)
        if not isinstance(encoder_outputs, ModelOutput | None):
            encoder_outputs = as_encoder_output(encoder_outputs)
        sources = attention_mask
        if sources is None:
            sources = getattr(encoder_outputs, "last_hidden_state", None)  # ONNX graphs return keys and values instead
        if input_ids is not None and sources is not None:
            # Before rows are repeated, since the copies of a prompt must have the same source.
            check_target_rows(len(input_ids), len(sources))
        input_ids, kwargs = super()._expand_inputs_for_generation(expand_size, False, input_ids, **kwargs)
        return input_ids, {**kwargs, "encoder_outputs": encoder_outputs, "attention_mask": attention_mask}

    def _reorder_cache(self, cache: EncoderDecoderCache, beam_idx: Tensor) -> EncoderDecoderCache:
        """Reorder the target's cache. The source's cache is unchanged, because beams are reordered within a source."""
        reordered = cache if isinstance(cache, FastDecodingCache) else cache.self_attention_cache
        reordered.reorder_cache(beam_idx)
        return cache


def registered_for_fsdp(model: nn.Module) -> bool:
    """Register `generate()` as a method that gathers the shards of a model of FSDP2.

    Returns:
        Whether it was registered now, so that it must be called again.
    """
    if "generate" in vars(model) or not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

    if not isinstance(model, FSDPModule):
        return False
    register_fsdp_forward_method(model, "generate")
    return True


def replace_saved_limit(kwargs: dict[str, Any]) -> None:
    """Let `max_new_tokens` or `max_length` of a call replace the other one in the generation config."""
    if kwargs.get("max_new_tokens") is not None:
        kwargs.setdefault("max_length", None)  # transformers would warn
    elif kwargs.get("max_length") is not None:
        kwargs.setdefault("max_new_tokens", None)  # transformers would ignore max_length


def finished_hypotheses(model: Any, options: dict[str, Any], patience: Any) -> FinishedHypotheses | None:
    """The counter of finished hypotheses for a beam search with patience; `None` for transformers' stopping rule.

    Like a length penalty, patience has no effect with one beam or with a decoding loop of the caller. The model's
    `patience` has no effect without `early_stopping`.

    Args:
        model: a model, whose generation config has the default options.
        options: the options of a call of `generate()`.
        patience: the effective value of the option.

    Raises:
        ValueError: `patience` is invalid, or the call's `patience` would have no effect because of `early_stopping`.
    """
    if not isinstance(patience, int | float) or not 1 <= patience <= MAX_PATIENCE:
        raise ValueError(f"patience must be None or a number from 1 to {MAX_PATIENCE}, got {patience!r}.")
    num_beams = generation_option(model, options, "num_beams") or 1
    if num_beams == 1 or callable(options.get("custom_generate")):
        return None
    early_stopping = generation_option(model, options, "early_stopping")
    if early_stopping is True:
        max_finished = math.floor(num_beams * patience + 0.5)  # rounds like CTranslate2; `round` would round 2.5 to 2
        return FinishedHypotheses(max_finished)
    if options.get("patience") is not None:
        raise ValueError(f"early_stopping must be True with patience={patience}, got {early_stopping!r}.")
    return None


def without_early_stopping(generation_config: Any, kwargs: dict[str, Any]) -> Any:
    """Turn early stopping off in a call, since transformers would end the search when all beams have finished.

    Args:
        generation_config: the generation config of the call, or `None`.
        kwargs: the other options of the call, which are changed.

    Returns:
        A generation config for the call.
    """
    if generation_config is None:
        kwargs["early_stopping"] = False
        return None
    kwargs.pop("early_stopping", None)  # transformers would warn of an argument beside a generation config
    generation_config = copy.deepcopy(generation_config)
    generation_config.early_stopping = False
    return generation_config


def pad_after_end(sequences: Tensor, padding: int | None, end: Any) -> None:
    """Replace repeated end tokens at the end of `sequences`, `[rows, length]`, by padding.

    transformers' beam search pads with the end token if the id of the padding token is 0.
    """
    if padding is None or end is None:
        return
    generated = sequences[:, 1:]
    is_end = torch.isin(generated, torch.as_tensor(end, device=sequences.device))
    only_ends_from_here = trailing_true(is_end)
    generated[:, 1:].masked_fill_(only_ends_from_here[:, :-1], padding)


def as_encoder_output(outputs: Any) -> BaseModelOutput:
    """An encoder's output from a mapping, another `ModelOutput` class, or a tuple in the order of its fields."""
    names = ("last_hidden_state", "hidden_states", "attentions")
    fields = dict(zip(names, outputs, strict=False)) if isinstance(outputs, (tuple, list)) else outputs
    if not isinstance(fields, Mapping) or not isinstance(fields.get("last_hidden_state"), Tensor):
        raise ValueError(
            f"encoder_outputs must be a ModelOutput with a last_hidden_state or a tuple, got {type(outputs).__name__}."
        )
    return BaseModelOutput(**{name: fields.get(name) for name in names})


def check_target_rows(rows: int, sources: int) -> None:
    """Raise a `ValueError` if the rows of a target cannot be divided among the sources."""
    if rows % max(sources, 1):
        raise ValueError(f"decoder_input_ids must have a multiple of the sources' {sources} rows, got {rows}.")


def check_cache(cache: Any) -> None:
    """Raise a `ValueError` for a cache that is no object of transformers' classes, such as a tuple of tensors."""
    if cache is not None and not isinstance(cache, Cache):
        raise ValueError(f"{CACHE_NAME} must be None or a Cache of transformers, got {type(cache).__name__}.")


def check_continued_target(ids: Tensor, cache: Cache, mask: Tensor | None, copies: int) -> None:
    """Raise a `ValueError` if `generate()` cannot continue the tokens in a cache with a target `[batch, length]`."""
    if copies > 1 or getattr(cache, "is_of_beams", False):
        raise ValueError(
            f"{CACHE_NAME} must be of and for one sequence per source, got tokens of beams: the rows of beams are not "
            "those of the returned sequences."
        )
    seen = int(cache.get_seq_length())
    if ids.shape[1] <= seen:
        raise ValueError(
            f"decoder_input_ids must contain all tokens in {CACHE_NAME}, {seen}, and at least one more, "
            f"got {ids.shape[1]} tokens."
        )
    if mask is not None and mask.shape != ids.shape:
        raise ValueError(
            f"decoder_attention_mask must have the shape of decoder_input_ids, {list(ids.shape)}, "
            f"got {list(mask.shape)}."
        )


def return_standard_cache(outputs: ModelOutput) -> None:
    """Replace the cache in the outputs of `generate()` by one of transformers' classes."""
    cache = cache_of(outputs)
    if isinstance(cache, EncoderDecoderCache):
        outputs[CACHE_NAME] = standard_cache(cache)
        outputs[CACHE_NAME].is_of_beams = hasattr(outputs, "beam_indices")


def standard_cache(cache: EncoderDecoderCache) -> EncoderDecoderCache:
    """The cache that `generate()` returns: transformers' classes, with a copy of the source's keys for each beam."""
    if isinstance(cache, FastDecodingCache):
        cache.end_steps()
        cache = EncoderDecoderCache(cache.self_attention_cache, cache.cross_attention_cache)
    target, source = cache.self_attention_cache, cache.cross_attention_cache
    if not source.layers or not source.layers[0].is_initialized:
        return cache
    copies = len(target.layers[0].keys) // len(source.layers[0].keys)
    if copies == 1:
        return cache
    expanded = DynamicCache()  # a layer of fixed capacity cannot repeat its rows
    for i, (keys, values) in enumerate(layer_states(source)):
        expanded.update(keys.repeat_interleave(copies, 0), values.repeat_interleave(copies, 0), i)
    return EncoderDecoderCache(target, expanded)
