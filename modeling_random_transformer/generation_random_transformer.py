"""How `generate()` computes one more token: the decoder in a straight line, on keys and values that are never copied.

The search itself (greedy, sampling, beams, stopping, logits processors) is transformers'. Here is the work between two
of its choices, where modules would spend most of their time on calls, masks and copies: the decoder's blocks as plain
operations, and keys and values that grow in place and that beams re-order by index.
"""

import inspect
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from transformers import logging
from transformers.activations import ACT2CLS
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
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .linear_random_transformer import PACKING_PAYS, adding, bare, called, hooked, joined, multiplies

logger = logging.get_logger(__name__)

TOKEN_BY_TOKEN = {
    GenerationMode.GREEDY_SEARCH,
    GenerationMode.SAMPLE,
    GenerationMode.BEAM_SEARCH,
    GenerationMode.BEAM_SAMPLE,
}
# Arguments of generate() that only the first pass reads, or none. (The mask on the target is checked by its values.)
WITHOUT_EFFECT_ON_STEPS = {
    "attention_mask",
    "decoder_attention_mask",
    "encoder_outputs",
    "inputs_embeds",
    "labels",
    "logits_to_keep",
    "num_items_in_batch",
    "use_cache",
}
WAITS = (MinLengthLogitsProcessor, MinNewTokensLengthLogitsProcessor)
ELEMENTWISE = tuple(kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values())
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
        attention, cross_attention = layer.self_attn, layer.encoder_attn
        self.width, self.value_width = attention.config.d_k, attention.config.d_v
        self.scale, self.source_scale = attention.scaling, cross_attention.scaling
        self.project = joined((attention.q_proj, attention.k_proj, attention.v_proj), rows)
        self.output, self.norm = adding(attention.out_proj, rows), bare(layer.self_attn_layer_norm)
        self.source_query, self.source_norm = bare(cross_attention.q_proj, rows), bare(layer.encoder_attn_layer_norm)
        self.source_output = adding(cross_attention.out_proj, rows)
        self.source_keys, self.source_values, self.source_mask = source.keys, source.values, source_mask
        if self.attend is attend:
            self.source_keys, self.source_values = source.keys.contiguous(), source.values.contiguous()
        self.inner, self.outer = bare(layer.fc1, rows), adding(layer.fc2, rows)
        activation = layer.activation_fn
        self.activation = activation if type(activation) in ELEMENTWISE else called(activation)
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
        return self.attend(query.transpose(1, 2), *source, self.source_scale).transpose(1, 2).reshape(len(states), -1)

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
        self.indices = [layer.self_attn.layer_idx for layer in decoder.layers]  # not consecutive after pruning
        target = [cache.self_attention_cache.layers[i] for i in self.indices]
        source = [cache.cross_attention_cache.layers[i] for i in self.indices]
        keys = target[0].keys
        self.slots = Slots(len(keys), beams, keys.shape[2], limit, keys)
        mask = hide_padding(padding_mask, keys.dtype)
        rows = len(keys) if limit - keys.shape[2] >= PACKING_PAYS else 0
        self.lm_head = bare(lm_head, rows)
        placed = [(self.slots.place(layer.keys), self.slots.place(layer.values)) for layer in target]
        stacked = zip(decoder.layers, placed, source, strict=True)
        self.blocks = [IncrementalBlock(layer, own, cross, mask, self.slots, rows) for layer, own, cross in stacked]
        self.embed_tokens, self.scale = decoder.embed_tokens, decoder.embed_scale
        self.embed_positions, self.norm = decoder.embed_positions, bare(decoder.layer_norm)

    def __call__(self, ids: Tensor) -> Tensor:
        """The newest tokens `[rows, 1]` → the logits of the next, `[rows, 1, vocab_size]`."""
        slots = self.slots
        if slots.length == slots.room:
            slots.grow()
            for block in self.blocks:
                block.enlarge()
        states = self.embed_tokens(ids) * self.scale
        if self.embed_positions is not None:
            states = states + self.embed_positions(slots.length, 1, slots.length + 1).to(states.dtype)
        states = states[:, 0]
        for block in self.blocks:
            states = block(states)
        slots.length += 1
        return self.lm_head(self.norm(states)[:, None])

    def collect(self) -> DynamicCache:
        """The target's keys and values as a cache of the library's own."""
        cache = DynamicCache()
        for i, block in zip(self.indices, self.blocks, strict=True):
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
    """The constraint of `min_length` or `min_new_tokens`: no end token before a target has so many tokens.

    The library's processors copy all scores twice at each step. This one writes to the scores of the end tokens only,
    in place.
    """

    def __init__(self, processor: MinLengthLogitsProcessor | MinNewTokensLengthLogitsProcessor, vocab_size: int):
        if isinstance(processor, MinLengthLogitsProcessor):
            self.min_length = processor.min_length
        else:
            self.min_length = processor.prompt_length_to_skip + processor.min_new_tokens
        self.ends = processor.eos_token_id[processor.eos_token_id < vocab_size]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores `[rows, vocab_size]` of the next token after `input_ids`, `[rows, length]`."""
        if input_ids.shape[1] < self.min_length:
            scores.index_fill_(1, self.ends, -torch.inf)
        return scores


class EndToken(EosTokenCriteria):
    """The library's criterion, by comparison: `torch.isin` takes many times as long for a few tokens."""

    def __call__(self, input_ids: Tensor, scores: Any, new_token_length: int = 1, **kwargs: Any) -> Tensor:
        """Which rows of `input_ids`, `[rows, length]`, have an end token among their last `new_token_length`."""
        newest = input_ids[:, -new_token_length:, None]
        return (newest == self.eos_token_id.to(newest.device)).flatten(1).any(dim=1)


class DecodingCache(EncoderDecoderCache):
    """The library's cache, whose target half moves to an `IncrementalDecoder` while steps of one token are taken.

    Reading `self_attention_cache` moves it back. Whatever takes the next step finds all tokens: the modules, in a
    replaced `forward` or for several tokens at once, or the methods of the library's cache.

    Args:
        beams: consecutive rows among which the search re-orders.
        limit: tokens that the target has in the end.
    """

    is_croppable = False

    def __init__(self, beams: int, limit: int):
        self.decoder: IncrementalDecoder | None = None
        self.target: Cache
        super().__init__(DynamicCache(), DynamicCache())
        self.beams, self.limit = beams, limit

    @property
    def self_attention_cache(self) -> Cache:
        """The keys and values of the target in the library's layout."""
        if self.decoder is not None:
            self.target, self.decoder = self.decoder.collect(), None
        return self.target

    @self_attention_cache.setter
    def self_attention_cache(self, cache: Cache) -> None:
        self.target = cache

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return super().get_seq_length(layer_idx) if self.decoder is None else self.decoder.slots.length

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Follow the beams, in the target only: they move within one source."""
        if self.decoder is None or self.beams == 1:
            self.self_attention_cache.reorder_cache(beam_idx)
        else:
            self.decoder.slots.reorder(beam_idx)

    def takes(self, ids: Tensor, *others: Any) -> bool:
        """Whether an `IncrementalDecoder` can take this step: one token a row after others, and no other argument."""
        one = ids.shape[1] == 1 and self.get_seq_length() > 0
        return one and all(value is None or value is False for value in others) and not torch.compiler.is_compiling()

    def step(self, model: Any, ids: Tensor, padding_mask: Tensor | None) -> Tensor:
        """The logits of the next tokens, `[rows, 1, vocab_size]`, after the newest, `[rows, 1]`."""
        if self.decoder is None:
            cached = (self, padding_mask, self.beams, self.limit)
            self.decoder = IncrementalDecoder(model.model.decoder, model.lm_head, *cached)
            self.target = DynamicCache()  # its tensors have been copied
        return self.decoder(ids)


# The public methods, when they were defined, of the classes whose computation an `IncrementalDecoder` repeats.
SHIPPED_METHODS: dict[type, dict[str, Any]] = {}


def record_methods(*classes: type) -> None:
    """Record the public methods that these classes have from their own file, to detect replaced ones later."""
    for cls in classes:
        own = [vars(base) for base in cls.__mro__ if base.__module__ == cls.__module__]
        names = {name for methods in own for name in methods if not name.startswith("_")}
        methods = {name: getattr(cls, name) for name in sorted(names) if inspect.isroutine(getattr(cls, name))}
        SHIPPED_METHODS[cls] = {**methods, "__call__": cls.__call__}


def replaced_method(cls: type, instance: nn.Module | None = None) -> str | None:
    """The first method that is not the recorded one, in the class or on its instance, for a message; `None` if none."""
    shipped = next((SHIPPED_METHODS[base] for base in cls.__mro__ if base in SHIPPED_METHODS), None)
    if shipped is None:
        return f"{cls.__name__} is not a class of this model"
    own = {} if instance is None else vars(instance)
    name = next((name for name, method in shipped.items() if name in own or getattr(cls, name) is not method), None)
    return name and f"{cls.__name__}.{name} is not the shipped method"


def differences(model: Any) -> Iterator[str]:
    """What an `IncrementalDecoder` would compute differently than the modules of this model.

    Projections, norms, activations and embeddings may be anything: it calls those that are not PyTorch's own. The
    instance's `forward` and the hooks of the model itself may be anything too: its step is taken inside of them.
    """
    if reason := replaced_method(type(model)):
        yield reason
    yield from module_differences("model", model.model)
    yield from module_differences("decoder", model.model.decoder)
    for i, layer in enumerate(model.model.decoder.layers):
        yield from module_differences(f"decoder.layers.{i}", layer)
        yield from attention_differences(f"decoder.layers.{i}.self_attn", layer.self_attn)
        yield from attention_differences(f"decoder.layers.{i}.encoder_attn", layer.encoder_attn)
    if ALL_ATTENTION_FUNCTIONS.get("sdpa") is not sdpa_attention_forward:
        yield "the attention function registered as 'sdpa' is not transformers' own"
    if ALL_MASK_ATTENTION_FUNCTIONS.get("sdpa") is not sdpa_mask:
        yield "the mask function registered as 'sdpa' is not transformers' own"


def module_differences(name: str, module: nn.Module) -> Iterator[str]:
    """What is not as shipped about one module whose `forward` an `IncrementalDecoder` does not call."""
    if reason := replaced_method(type(module), module):
        yield f"{name}: {reason}"
    if hooked(module):
        yield f"{name} has a hook or a compiled forward"
    if module.training:
        yield f"{name} is in training mode"


def attention_differences(name: str, attention: Any) -> Iterator[str]:
    """The same about an attention module, whose settings count too. Its scaling may be any number."""
    yield from module_differences(name, attention)
    if attention.config._attn_implementation != "sdpa":
        yield f"{name}: the attention implementation is {attention.config._attn_implementation!r}, not 'sdpa'"
    if not isinstance(attention.scaling, int | float):
        yield f"{name}.scaling is a {type(attention.scaling).__name__}, not a number"


def special_request(config: GenerationConfig, mode: GenerationMode, model_kwargs: dict[str, Any]) -> str | None:
    """The argument of this call of `generate()` that an `IncrementalDecoder` does not support, for a message."""
    target_mask = model_kwargs.get("decoder_attention_mask")
    given = {name for name, value in model_kwargs.items() if value is not None} - WITHOUT_EFFECT_ON_STEPS
    unsupported = {
        "custom_generate": CUSTOM_LOOP.get(),
        f"the generation mode {mode.value!r}": mode not in TOKEN_BY_TOKEN,
        "use_cache=False": config.use_cache is False,
        f"cache_implementation={config.cache_implementation!r}": config.cache_implementation not in (None, "dynamic"),
        "output_attentions": config.output_attentions,
        "output_hidden_states": config.output_hidden_states,
        "decoder_attention_mask": target_mask is not None and not (target_mask.dim() == 2 and target_mask.all()),
        ", ".join(sorted(given)): bool(given),
    }
    return next((f"{name} was requested" for name, requested in unsupported.items() if requested), None)


# Whether generate() runs a decoding loop that its caller has passed as `custom_generate`.
CUSTOM_LOOP: ContextVar[bool] = ContextVar("custom_loop", default=False)


@lru_cache(maxsize=256)
def log_fallback(reason: str) -> None:
    """Log once per reason."""
    logger.debug("generate() runs the decoder's modules at every step: %s.", reason)


class RandomTransformerGenerationMixin(GenerationMixin):
    """The library's `generate()`, whose steps of one token are taken by an `IncrementalDecoder` if that is equivalent.

    Otherwise the modules take them, and the reason is logged at debug level.
    """

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """The library's. As it calls the encoder on its own, FSDP2 has to gather the root's weights for all of it."""
        if torch.distributed.is_available() and torch.distributed.is_initialized() and "generate" not in vars(self):
            from torch.distributed.fsdp import FSDPModule, register_fsdp_forward_method

            if isinstance(self, FSDPModule):
                register_fsdp_forward_method(self, "generate")
                return self.generate(*args, **kwargs)
        outputs = super().generate(*args, **kwargs)
        if isinstance(getattr(outputs, "past_key_values", None), EncoderDecoderCache):
            outputs.past_key_values = library_cache(outputs.past_key_values)
        return outputs

    def _extract_generation_mode_kwargs(self, custom_generate: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        """The library's. Here every call of `generate()` learns whether its loop is the caller's own."""
        CUSTOM_LOOP.set(callable(custom_generate))
        return super()._extract_generation_mode_kwargs(custom_generate, *args, **kwargs)

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> None:
        """The library's cache, or one whose steps an `IncrementalDecoder` takes."""
        reason = special_request(generation_config, generation_mode, model_kwargs) or self.fallback_reason()
        super()._prepare_cache_for_generation(
            generation_config, model_kwargs, generation_mode, batch_size, max_cache_length
        )
        if reason is None:
            model_kwargs["past_key_values"] = DecodingCache(generation_config.num_beams, max_cache_length)
        else:
            log_fallback(reason)

    def fallback_reason(self) -> str | None:
        """Why the modules take the steps of `generate()`; `None` if an `IncrementalDecoder` does."""
        return next(differences(self), None)

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        next_sequence_length: int | None = None,
        past_key_values: Cache | None = None,
        attention_mask: Tensor | None = None,
        **kwargs: Any,
    ) -> dict[str, Any]:
        """The library's; for a step of one token only what the modules or an `IncrementalDecoder` need."""
        if next_sequence_length != 1 or not isinstance(past_key_values, DecodingCache):
            given = {"past_key_values": past_key_values, "attention_mask": attention_mask, **kwargs}
            return super().prepare_inputs_for_generation(input_ids, next_sequence_length, **given)
        return {
            "decoder_input_ids": input_ids[:, -1:],
            "past_key_values": past_key_values,
            "attention_mask": attention_mask,
            "encoder_outputs": kwargs.get("encoder_outputs"),
            "use_cache": True,
        }

    def _get_logits_processor(self, generation_config: GenerationConfig, *args: Any, **kwargs: Any) -> Any:
        """The library's; each `min_length` and `min_new_tokens` of the configuration as a `NoEarlyEnd`."""
        processors = super()._get_logits_processor(generation_config, *args, **kwargs)
        if generation_config.output_logits:  # the loop keeps the tensor that would be changed in place
            return processors
        given = set(map(id, kwargs.get("logits_processor") or ()))
        for i, processor in enumerate(processors):
            if type(processor) in WAITS and id(processor) not in given:
                processors[i] = NoEarlyEnd(processor, self.config.vocab_size)
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


def rows_per_source(cache: EncoderDecoderCache) -> int:
    """How many consecutive rows of the target share a row of the source; 1 for a cache without keys."""
    target, source = cache.self_attention_cache.layers, cache.cross_attention_cache.layers
    filled = target and source and target[0].is_initialized and source[0].is_initialized
    return len(target[0].keys) // len(source[0].keys) if filled else 1


def library_cache(cache: EncoderDecoderCache) -> EncoderDecoderCache:
    """The same keys and values for callers of `generate()`: in the library's classes, the source's once per beam."""
    target, source, copies = cache.self_attention_cache, cache.cross_attention_cache, rows_per_source(cache)
    if copies > 1:
        expanded = DynamicCache()
        for i, layer in enumerate(source.layers):
            expanded.update(layer.keys.repeat_interleave(copies, 0), layer.values.repeat_interleave(copies, 0), i)
        return EncoderDecoderCache(target, expanded)
    return EncoderDecoderCache(target, source) if isinstance(cache, DecodingCache) else cache
