"""A decoder step of one token as functions, and the KV caches that it extends.

Modules spend most of the time of a step on calls, masks and copies. Here, the decoder layers run as plain functions on
a KV cache that grows in place and reorders beams through its mask. On a GPU, steps run as CUDA graphs.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from threading import Lock
from typing import Any, Protocol
from weakref import WeakKeyDictionary, finalize

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad, scaled_dot_product_attention
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache

from .ops_random_transformer import (
    MIN_STEPS_TO_PACK,
    PackedLinear,
    can_pack,
    float32_precisions,
    is_plain,
    is_unmodified,
    matmul_attention,
    prefers_matmul_for_decoding,
)
from .quantization_random_transformer import Int8Linear, PackedInt8Linear, packed_int8_linear
from .snapshot_random_transformer import Snapshot

INITIAL_CAPACITY = 64  # tokens for which a KV cache is allocated
SMALLEST_BUCKET = 32  # capacity of a static KV cache, in tokens
WARM_UP_STEPS = 3  # steps that run before a CUDA graph is captured
MAX_CAPTURED_STEPS = 8  # CUDA graphs and their tensors that are kept for each model
MAX_DEFAULT_ENTRIES = 2**15  # target tokens of the cache of a graph that is captured by default
COMPACTION_INTERVAL = 8  # decoding steps
CAPTURE_LOCK = Lock()  # only one CUDA graph may be captured at a time in a process


# KV caches of beams


LayerKeysValues = Sequence[tuple[Tensor, Tensor]]  # keys and values of each layer, [batch, heads, length, d_k or d_v]


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

    def __init__(self, layers: LayerKeysValues, beams: int, capacity: int | None = None):
        first_keys, _ = layers[0]
        self.beams = beams
        self.groups = len(first_keys) // beams  # rows that share no entries: one per source
        self.length = first_keys.shape[2]  # tokens so far
        self.entries = self.length * beams  # entries per group that are in use
        tokens = capacity or max(INITIAL_CAPACITY, 2 * self.length)
        self.capacity = tokens * beams  # in entries per group
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

    def __init__(self, layers: LayerKeysValues, beams: int, max_length: int):
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


# The decoder as a function of one token


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
        batch_size: pack the weights for this number of rows; 0 keeps the unpacked layout of floating-point weights.
    """

    def __init__(self, layer: Any, batch_size: int):
        target_attention = layer.self_attn
        source_attention = layer.encoder_attn
        self.norm_before = layer.norm_before
        self.norm_after = layer.norm_after
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
        inputs = self.norm_before(self.target_norm, states)
        query, key, value = self.project(inputs)
        heads = attention.attend_to_target(query, key, value)
        states = self.target_output.add_residual(states, heads)
        states = self.norm_after(self.target_norm, states)

        inputs = self.norm_before(self.source_norm, states)
        query = self.project_query(inputs)
        heads = attention.attend_to_source(query)
        states = self.source_output.add_residual(states, heads)
        states = self.norm_after(self.source_norm, states)

        inputs = self.norm_before(self.final_norm, states)
        inner = self.activation(self.fc1(inputs))
        states = self.fc2.add_residual(states, inner)
        return self.norm_after(self.final_norm, states)


class FastDecoder:
    """Decoder and output layer as a function of the newest tokens, for `generate()` and the ONNX export.

    Args:
        decoder: the decoder.
        lm_head: the output layer.
        batch_size: pack the weights for this number of rows; 0 keeps the unpacked layout of floating-point weights.
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
        target: the KV cache of the target.
        source: keys and values of the source, `[sources, heads, source_len, d_k or d_v]`.
        source_mask: 0 for source tokens, -inf for padding, `[sources, 1, 1, source_len]`; `None` without padding.
    """

    def __init__(
        self, layer: Any, index: int, target: BeamKVCache, source: tuple[Tensor, Tensor], source_mask: Tensor | None
    ):
        self.index = index
        self.target = target
        self.d_k = layer.config.d_k
        self.d_v = layer.config.d_v
        self.target_scale = layer.self_attn.scaling
        self.source_scale = layer.encoder_attn.scaling
        self.source_keys, self.source_values = source
        self.source_mask = source_mask
        self.attend: Callable[..., Tensor] = scaled_dot_product_attention
        if prefers_matmul_for_decoding(self.source_keys, source_mask):
            self.attend = matmul_attention
            self.source_keys = self.source_keys.contiguous()
            self.source_values = self.source_values.contiguous()

    def attend_to_target(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """`[batch, heads · d_k]` and `[batch, heads · d_v]` → `[batch, heads · d_v]`."""
        split_heads = self.target.split_heads
        query_heads = split_heads(query, self.d_k)
        key_heads = split_heads(key, self.d_k)
        value_heads = split_heads(value, self.d_v)
        keys, values, mask = self.target.append(self.index, key_heads, value_heads)
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


# Caches and steps of `generate()`


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
            return self.step.target.length
        return super().get_seq_length(layer_idx)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Reorder the target's rows. The source's rows are unchanged, because beams are reordered within a source."""
        if self.beams == 1:  # a search of the caller, which may reorder rows of different sources
            self.end_steps()
        target = self.self_attention_cache if self.step is None else self.step.target
        target.reorder_cache(beam_idx)

    def current_step(self, model: Any, padding_mask: Tensor | None) -> "FastStep":
        """The step of this cache, which is created after the modules have filled it."""
        if self.step is None:
            self.step = self.new_step(model, padding_mask)
            self.self_attention_cache = DynamicCache()  # the tensors of the modules' cache have been copied
        return self.step

    def new_step(self, model: Any, padding_mask: Tensor | None) -> "FastStep":
        """A step that continues the tokens of this cache."""
        target = BeamKVCache(keys_values_of(self.self_attention_cache), self.beams)
        source = keys_values_of(self.cross_attention_cache)
        mask = additive_padding_mask(padding_mask, source[0][0].dtype)
        return FastStep(model, target, source, mask, self.max_length)

    def end_steps(self) -> None:
        """Return the keys and values to transformers' layout, for the modules and for callers of `generate()`."""
        if self.step is None:
            return
        beam_cache = self.step.target
        for i, (keys, values) in enumerate(zip(beam_cache.keys, beam_cache.values, strict=True)):
            keys = beam_cache.separate_beams(keys)
            values = beam_cache.separate_beams(values)
            self.self_attention_cache.update(keys, values, i)
        self.step = None


def keys_values_of(cache: Cache) -> LayerKeysValues:
    """The keys and values of each layer of transformers' cache, `[batch, heads, length, d_k or d_v]`.

    Layers of the cache that the decoder does not have are empty, and omitted.
    """
    return [(layer.keys, layer.values) for layer in cache.layers if layer.is_initialized]


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
        target = StaticKVCache(keys_values_of(self.self_attention_cache), self.beams, self.max_length)
        source = keys_values_of(self.cross_attention_cache)
        first_keys, _ = source[0]
        sources, _, length, _ = first_keys.shape
        mask = additive_padding_mask(padding_mask, first_keys.dtype)
        if mask is None:
            mask = first_keys.new_zeros(sources, 1, 1, length)
        added = bucket(length) - length
        mask = pad(mask, (0, added), value=-torch.inf)
        padding = (0, 0, 0, added)
        padded = [(pad(keys, padding), pad(values, padding)) for keys, values in source]
        if self.is_captured:
            step = CapturedStep(model, target, padded, mask, self.max_length)
            return self.reusable_step(model, step)
        return FastStep(model, target, padded, mask, self.max_length)

    def reusable_step(self, model: Any, step: "CapturedStep") -> "CapturedStep":
        """The captured step of an earlier call with the same shapes, or a new one, which is kept for later calls."""
        pool = step_pool(model)
        signature = step.signature()
        earlier = pool.steps.pop(signature, None)  # no other call can use it until this one is over
        if earlier is not None:
            earlier.load(step)
            step = earlier
        finalize(self, pool.keep, signature, step)
        return step


class FastStep:
    """One decoder step after the first pass: the `step` that `generate()` passes to the model's `forward`.

    Args:
        model: the model.
        target: the KV cache of the target, which contains all earlier tokens.
        source: the keys and values of the source per layer, `[sources, heads, source_len, d_k or d_v]`.
        source_mask: 0 for source tokens, -inf for padding, `[sources, 1, 1, source_len]`; `None` without padding.
        max_length: maximum number of target tokens. The weights are packed if enough steps remain.
    """

    def __init__(
        self,
        model: Any,
        target: BeamKVCache,
        source: LayerKeysValues,
        source_mask: Tensor | None,
        max_length: int,
    ):
        self.decoder = model.model.decoder
        self.lm_head = model.lm_head
        self.target = target
        packs_weights = max_length - target.length >= MIN_STEPS_TO_PACK
        self.batch_size = target.groups * target.beams if packs_weights else 0
        self.attentions = []
        for i, (layer, layer_source) in enumerate(zip(self.decoder.layers, source, strict=True)):
            self.attentions.append(BeamAttention(layer, i, target, layer_source, source_mask))

    @cached_property
    def fast_decoder(self) -> FastDecoder:
        """Created in the first step: a wrapped `forward` may enable autocast, which layers cannot ignore."""
        return FastDecoder(self.decoder, self.lm_head, self.batch_size)

    def __call__(self, ids: Tensor) -> Tensor:
        """The newest tokens, `[batch, 1]` → logits of the next tokens, `[batch, 1, vocab_size]`."""
        logits = self.compute(ids)
        self.target.advance()
        return logits[:, None]

    def compute(self, ids: Tensor) -> Tensor:
        """The logits of a step, without a change of Python values: `[batch, 1]` → `[batch, vocab_size]`."""
        self.target.reserve()
        states = self.decoder.embed(ids, self.target.next_position(), position_limit=self.target.length + 1)
        return self.fast_decoder(states[:, 0], self.attentions)


# Steps as CUDA graphs


class CapturedStep(FastStep):
    """A `FastStep` on a `StaticKVCache` as a CUDA graph, which launches all kernels at once.

    The graph computes on the tensors with which it was captured. A later call copies its tensors into them.
    """

    target: StaticKVCache
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
        current = torch.cuda.current_stream()
        stream = torch.cuda.Stream()
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            for _ in range(WARM_UP_STEPS):
                super().compute(self.ids)
                self.copy_from(initial)
        current.wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads may use the GPU. The default stream of captures is on the device of the first one.
        with CAPTURE_LOCK, torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
            self.logits = super().compute(self.ids)
        self.graph = graph  # a graph whose capture has failed cannot be replayed

    def tensors(self) -> list[Tensor]:
        """The tensors that the steps of a call read, apart from the weights."""
        target = self.target
        tensors = [*target.keys, *target.values, target.mask, target.position, target.token_entries]
        for attention in self.attentions:
            assert attention.source_mask is not None
            tensors += [attention.source_keys, attention.source_values, attention.source_mask]
        return tensors

    def signature(self) -> tuple[Any, ...]:
        """The shapes and modes of this step: steps with equal signatures can use the same graph."""
        layouts = [(tensor.shape, tensor.dtype, tensor.device) for tensor in self.tensors()]
        modes = torch.is_inference_mode_enabled(), float32_precisions()
        return self.target.beams, *modes, *layouts

    def load(self, step: "CapturedStep") -> None:
        """Continue the tokens of another step."""
        self.copy_from(step.tensors())
        self.target.length = step.target.length
        self.target.entries = step.target.entries

    def copy_from(self, tensors: Sequence[Tensor]) -> None:
        """Copy another step's tensors into `tensors()`."""
        for tensor, source in zip(self.tensors(), tensors, strict=True):
            tensor.copy_(source)


class StepPool:
    """The captured steps of a model that no call uses, and the sizes of the calls that did not capture one."""

    def __init__(self) -> None:
        self.steps: dict[tuple[Any, ...], CapturedStep] = {}  # by their signatures
        self.seen_sizes: set[tuple[int, ...]] = set()

    def keep(self, signature: tuple[Any, ...], step: CapturedStep) -> None:
        """Keep a captured step for later calls, and drop the least recently used steps above a limit."""
        if step.graph is not None:
            self.steps[signature] = step
        if len(self.steps) > MAX_CAPTURED_STEPS:
            oldest = next(iter(self.steps))
            del self.steps[oldest]

    def record_sizes(self, sizes: tuple[int, ...]) -> None:
        """Record the sizes of a call, whose step may be captured from the next call with these sizes on.

        Capturing a graph takes as long as some 30 steps, so it saves time from the second call on. Graphs of many sizes
        or of large caches would need much memory, so such sizes are not recorded.

        Args:
            sizes: `(rows, beams, target capacity, source capacity)`.
        """
        rows, _, capacity, _ = sizes
        if len(self.seen_sizes) < MAX_CAPTURED_STEPS and rows * capacity <= MAX_DEFAULT_ENTRIES:
            self.seen_sizes.add(sizes)


# A graph reads the weights by address, so it is valid as long as the snapshot of its model.
STEP_POOLS: WeakKeyDictionary[Snapshot, StepPool] = WeakKeyDictionary()


def step_pool(model: Any) -> StepPool:
    """The pool of a model in its current state."""
    return STEP_POOLS.setdefault(model.snapshot, StepPool())


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


def functional_linear(module: Any, batch_size: int) -> LinearFunction:
    """Convert a linear layer to a function of its input, with a method that adds the result to a residual.

    Args:
        module: the layer. Other modules are called as modules.
        batch_size: pack the weights for this number of rows; 0 keeps the unpacked layout of floating-point weights.
    """
    packed = packed_linear((module,), batch_size)
    if packed is not None:
        return packed
    if is_unmodified(module, Int8Linear) and is_plain(module.weight_scale):
        return PlainLinear(module.dequantized_weight(), module.bias)
    if is_unmodified(module, nn.Linear) and is_plain(module.weight):
        return PlainLinear(module.weight, module.bias)
    return ModuleFunction(module)


def fused_linear(modules: tuple[Any, ...], batch_size: int) -> Callable[[Tensor], tuple[Tensor, ...]]:
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
    shape = module.normalized_shape
    scale = module.weight
    shift = module.bias
    eps = module.eps
    return lambda states: torch.layer_norm(states, shape, scale, shift, eps)
