"""The Transformer of "Attention Is All You Need", read from top to bottom like the paper's Figure 1.

Positions and token embeddings come first, then attention, the encoder and decoder blocks, the two stacks, the whole
model and its output layer. Masks, caches, the attention kernels and the search over outputs are transformers' own.

Shapes in this file: `batch` counts sequences, `source_len` and `target_len` tokens, `heads` attention heads.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as DecoderOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_random_transformer import RandomTransformerConfig
from .generation_random_transformer import DecodingCache, RandomTransformerGenerationMixin, record_methods
from .loss_random_transformer import is_transformed, token_loss

HAVE_FLOAT64 = {"cpu", "cuda", "meta"}  # device types; MPS and most others have no float64


def sinusoids(positions: Tensor, d_model: int, layout: str = "interleaved") -> Tensor:
    """sin(p / 10000^(2i/d)) and cos(p / 10000^(2i/d)) (paper 3.5), side by side or (`"concatenated"`) all sines first.

    Integer positions `[…, length]` → `[…, length, d_model]` in float32 on the device of the positions. Computed in
    float64, on the CPU where the device has none.
    """
    counted = positions if positions.device.type in HAVE_FLOAT64 else positions.cpu()
    two_i = torch.arange(0, d_model, 2, dtype=torch.float64, device=counted.device)
    angles = counted.to(torch.float64)[..., None] / 10000 ** (two_i / d_model)  # […, length, d_model / 2]
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1)  # […, length, d_model / 2, 2]
    if layout == "concatenated":
        waves = waves.transpose(-1, -2)
    return waves.flatten(-2).to(torch.float32).to(positions.device)


def rows(table: Tensor, start: int | Tensor, length: int) -> Tensor:
    """`table[start : start + length]`, also for a start in a tensor on the device."""
    if isinstance(start, Tensor):
        return nn.functional.embedding(start + torch.arange(length, device=table.device), table)
    return table[start : start + length]


class SinusoidalPositions(nn.Module):
    """Sinusoids for sequences of any length (paper 3.5). Nothing is learned, nothing is stored in a checkpoint."""

    table: Tensor  # [max_position_embeddings, d_model], prepared in advance

    def __init__(self, config: RandomTransformerConfig):
        super().__init__()
        self.config = config
        self.register_buffer("table", self.encode(torch.arange(config.max_position_embeddings)), persistent=False)

    def encode(self, indices: Tensor) -> Tensor:
        """Encodings of the tokens at these indices of a sequence: `[length]` → `[length, d_model]`."""
        return sinusoids(indices + self.config.position_offset, self.config.d_model, self.config.sinusoid_layout)

    def forward(self, start: int | Tensor, length: int, end: int | None) -> Tensor:
        """Encodings of `length` tokens from index `start` on, `[length, d_model]`.

        All positions are below `end`; `None` is an end that is known on the device only.
        """
        if end is not None and end <= self.table.shape[0]:
            return rows(self.table, start, length)
        return self.encode(start + torch.arange(length, device=self.table.device))


class LearnedPositions(nn.Embedding):
    """A learned vector per position (paper 3.5; Table 3, row E)."""

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config.max_position_embeddings + config.position_offset, config.d_model)
        self.config = config

    def forward(self, start: int | Tensor, length: int, end: int | None) -> Tensor:  # type: ignore[override]
        """Vectors of `length` tokens from index `start` on, `[length, d_model]`.

        All positions are below `end`; `None` is an end that is known on the device only.

        Raises:
            ValueError: `end` is above `max_position_embeddings`.
        """
        limit = self.config.max_position_embeddings
        if end is not None and end > limit:
            raise ValueError(f"learned positions reach to max_position_embeddings={limit}, got a length of {end}.")
        return rows(self.weight[self.config.position_offset :], start, length)


def eager_attention_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Any,
) -> tuple[Tensor, Tensor]:
    """softmax(Q·Kᵀ · scaling)·V (paper 3.2.1), the reference for the library's faster implementations.

    `query` and `key` are `[batch, heads, query_len or key_len, d_k]`, `value` is `[batch, heads, key_len, d_v]`; the
    mask, `[batch, 1, query_len, key_len]`, is 0 where a query may see a key and the dtype's minimum elsewhere, or true
    and false. Returns outputs `[batch, query_len, heads, d_v]` and weights `[batch, heads, query_len, key_len]`.
    """
    scores = torch.matmul(query, key.transpose(-1, -2)) * scaling
    # In float32 at least: a half-precision minimum plus a negative score would overflow to -inf.
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if attention_mask is not None and attention_mask.dtype == torch.bool:
        attention_mask = torch.where(attention_mask, 0.0, torch.finfo(scores.dtype).min)
    if attention_mask is None:
        weights = scores.softmax(dim=-1)
    else:
        # Hidden keys weigh exactly nothing, also for a query that may see no key at all.
        hidden = attention_mask <= torch.finfo(attention_mask.dtype).min
        weights = (scores + attention_mask).softmax(dim=-1).masked_fill(hidden, 0.0)
    weights = weights.to(query.dtype)
    outputs = nn.functional.dropout(weights, p=dropout, training=module.training) @ value
    return outputs.transpose(1, 2), weights


class RandomTransformerAttention(nn.Module):
    """Multi-head attention (paper 3.2.2): self-attention, or cross-attention when `key_value_states` are given."""

    def __init__(self, config: RandomTransformerConfig, layer_idx: int, is_causal: bool = False):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.is_causal = is_causal
        self.scaling = config.attention_scale
        keys_width, values_width = config.num_heads * config.d_k, config.num_heads * config.d_v
        self.q_proj = nn.Linear(config.d_model, keys_width, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.d_model, keys_width, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.d_model, values_width, bias=config.attention_bias)
        self.out_proj = nn.Linear(values_width, config.d_model, bias=config.attention_bias)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `hidden_states`, `[batch, query_len, d_model]`, to themselves or to `key_value_states`.

        Those are `[sources, source_len, d_model]`, where `batch` may be a multiple of `sources`: consecutive rows then
        share a source, as beams do. Returns new states, `[batch, query_len, d_model]`, and the weights
        `[batch, heads, query_len, key_len]` if the chosen implementation gives them.
        """
        batch, query_len, d_model = hidden_states.shape
        if key_value_states is None:
            key, value = self.project_keys_and_values(hidden_states)
            if past_key_values is not None:
                key, value = past_key_values.self_attention_cache.update(key, value, self.layer_idx)
        else:
            key, value = self.source_keys_and_values(key_value_states, past_key_values)
            hidden_states = group_by_source(hidden_states, key.shape[0])

        query = self.split_heads(self.q_proj(hidden_states), self.config.d_k)
        implementation = self.config._attn_implementation
        if key_value_states is not None and isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
            # Flash attention's mask. transformers would drop the queries too that the keys' padding names.
            implementation, attention_mask = "sdpa", attention_mask[:, None, None].bool()
        # transformers' call of the fused kernel cannot reshape an empty batch.
        if implementation == "sdpa" and (batch == 0 or fused_attention_is_slow(query, key)):
            implementation = "eager"
            if attention_mask is None and self.is_causal:
                attention_mask = torch.ones(query_len, key.shape[2], dtype=torch.bool).tril(key.shape[2] - query_len)
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        rate = self.config.attention_dropout if self.training else 0.0
        outputs, weights = attend(self, query, key, value, attention_mask, scaling=self.scaling, dropout=rate, **kwargs)
        outputs = self.out_proj(outputs.flatten(2)).view(batch, query_len, d_model)
        if weights is not None and weights.shape[0] != batch:
            weights = ungroup_weights(weights, batch, query_len)
        return outputs, weights

    def project_keys_and_values(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """`[batch, length, d_model]` → keys `[batch, heads, length, d_k]` and values `[batch, heads, length, d_v]`."""
        keys = self.split_heads(self.k_proj(states), self.config.d_k)
        return keys, self.split_heads(self.v_proj(states), self.config.d_v)

    def source_keys_and_values(
        self, source_states: Tensor, past_key_values: EncoderDecoderCache | None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of the encoded source: projected at the first step, remembered for the others."""
        if past_key_values is None:
            return self.project_keys_and_values(source_states)
        cache = past_key_values.cross_attention_cache
        if past_key_values.is_updated.get(self.layer_idx):
            return cache.layers[self.layer_idx].keys, cache.layers[self.layer_idx].values
        past_key_values.is_updated[self.layer_idx] = True
        return cache.update(*self.project_keys_and_values(source_states), self.layer_idx)

    @staticmethod
    def split_heads(projected: Tensor, width: int) -> Tensor:
        """`[batch, length, heads · width]` → `[batch, heads, length, width]`. Counts the heads this device holds."""
        return projected.unflatten(2, (-1, width)).transpose(1, 2)


def group_by_source(states: Tensor, sources: int) -> Tensor:
    """Queries of rows that share a source, side by side: they meet the same keys, so no key need be copied.

    `[batch, query_len, d_model]` → `[sources, batch / sources · query_len, d_model]`.
    """
    return states if states.shape[0] == sources else states.reshape(sources, -1, states.shape[-1])


def ungroup_weights(weights: Tensor, batch: int, query_len: int) -> Tensor:
    """`[sources, heads, batch / sources · query_len, key_len]` → `[batch, heads, query_len, key_len]`."""
    rows_and_queries = (batch // weights.shape[0], query_len)
    return weights.unflatten(2, rows_and_queries).transpose(1, 2).flatten(0, 1)


def fused_attention_is_slow(query: Tensor, key: Tensor) -> bool:
    """Whether plain products train faster than PyTorch's fused kernel: on a CPU in half precision, up to 15 times.

    Lengths above 128 would take too much memory. The comparison comes last, and not in `torch.export`, which would
    limit the exported model to the lengths on one side of it.
    """
    trains = query.device.type == "cpu" and query.requires_grad and query.element_size() < 4
    return trains and not torch.compiler.is_exporting() and key.shape[2] <= 128


def dropout(states: Tensor, rate: float, training: bool) -> Tensor:
    """Dropout (paper 5.4). On a CPU, 16 random bits decide on an element: seven times as fast as PyTorch's 64."""
    dropped = round(rate * 2**16)  # of the numbers that 16 bits can be
    if not training or states.device.type != "cpu" or not 0 < dropped < 2**16 or is_transformed():
        return nn.functional.dropout(states, rate, training)
    bits = torch.empty(math.ceil(states.numel() / 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = bits[: states.numel()].view(states.shape) >= dropped - 2**15
    return states * kept.to(states.dtype).mul_(2**16 / (2**16 - dropped))


class RandomTransformerBlock(nn.Module):
    """What encoder and decoder blocks share: self-attention, the feed-forward network and "Add & Norm"."""

    def __init__(self, config: RandomTransformerConfig, layer_idx: int, is_causal: bool):
        super().__init__()
        self.config = config
        self.self_attn = RandomTransformerAttention(config, layer_idx, is_causal=is_causal)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, config.d_ff)
        self.fc2 = nn.Linear(config.d_ff, config.d_model)
        self.activation_fn = ACT2FN[config.activation_function]
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def add_and_norm(self, states: Tensor, norm: nn.LayerNorm, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """The residual connection around a sub-layer, with dropout on its output (paper 3.1 and 5.4)."""
        if self.config.norm_order == "pre":
            return states + dropout(sublayer(norm(states)), self.config.dropout, self.training)
        return norm(states + dropout(sublayer(states), self.config.dropout, self.training))

    def feed_forward(self, states: Tensor) -> Tensor:
        """FFN(x) = max(0, x·W₁ + b₁)·W₂ + b₂ (paper 3.3): `[batch, length, d_model]` in and out."""
        inner = self.activation_fn(self.fc1(states))
        return self.fc2(dropout(inner, self.config.activation_dropout, self.training))


class RandomTransformerEncoderLayer(GradientCheckpointingLayer, RandomTransformerBlock):
    """A block of the encoder: self-attention and feed-forward network (paper 3.1, Figure 1 left)."""

    def __init__(self, config: RandomTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx, is_causal=False)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """`[batch, source_len, d_model]` in and out."""
        hidden_states = self.add_and_norm(
            hidden_states, self.self_attn_layer_norm, lambda x: self.self_attn(x, attention_mask, **kwargs)[0]
        )
        return self.add_and_norm(hidden_states, self.final_layer_norm, self.feed_forward)


class RandomTransformerDecoderLayer(GradientCheckpointingLayer, RandomTransformerBlock):
    """A block of the decoder: masked self-attention, cross-attention, feed-forward (paper 3.1, Figure 1 right)."""

    def __init__(self, config: RandomTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx, is_causal=True)
        if config.is_encoder_decoder:
            self.encoder_attn = RandomTransformerAttention(config, layer_idx)
            self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        encoder_hidden_states: Tensor | None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """States `[batch, target_len, d_model]` in and out; the encoded source is `[sources, source_len, d_model]`."""
        hidden_states = self.add_and_norm(
            hidden_states,
            self.self_attn_layer_norm,
            lambda x: self.self_attn(x, attention_mask, None, past_key_values, **kwargs)[0],
        )
        if encoder_hidden_states is not None:
            source = (encoder_attention_mask, encoder_hidden_states, past_key_values)
            hidden_states = self.add_and_norm(
                hidden_states, self.encoder_attn_layer_norm, lambda x: self.encoder_attn(x, *source, **kwargs)[0]
            )
        return self.add_and_norm(hidden_states, self.final_layer_norm, self.feed_forward)


class RandomTransformerPreTrainedModel(PreTrainedModel):
    """What transformers needs to know of every model in this file."""

    config_class = RandomTransformerConfig
    config: RandomTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["RandomTransformerEncoderLayer", "RandomTransformerDecoderLayer"]
    _skip_keys_device_placement = ["past_key_values"]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True

    def post_init(self) -> None:
        super().post_init()
        self.__module__ = type(self).__module__  # whose code save_pretrained copies; FSDP2 puts its class before ours

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Xavier for projections, N(0, 1/d_model) for embeddings: times sqrt(d_model) they have unit variance."""
        if isinstance(module, nn.Embedding) or module is getattr(self, "lm_head", None):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
        elif isinstance(module, SinusoidalPositions):
            init.copy_(module.table, module.encode(torch.arange(len(module.table), device=module.table.device)))
        if getattr(module, "bias", None) is not None:
            init.zeros_(module.bias)

    def _flash_attn_can_dispatch(self, *args: Any, **kwargs: Any) -> bool:
        if self.config.d_k != self.config.d_v:
            others = f"'eager', 'sdpa' or 'flex_attention' with d_k={self.config.d_k}, d_v={self.config.d_v}"
            raise ValueError(f"attn_implementation must be {others}, got flash.")
        return super()._flash_attn_can_dispatch(*args, **kwargs)

    def _resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Source and target have one vocabulary, so a decoder with an embedding of its own grows along."""
        model = self.base_model
        if not self.config.share_embeddings and len(getattr(model, "stacks", ())) > 1:
            model.decoder.embed_tokens = self._get_resized_embeddings(model.decoder.embed_tokens, *args, **kwargs)
        return super()._resize_token_embeddings(*args, **kwargs)


class RandomTransformerStack(RandomTransformerPreTrainedModel):
    """What encoder and decoder share: N blocks on embeddings with positions (paper 3.1, 3.4, 3.5)."""

    def __init__(self, config: RandomTransformerConfig, layers: list[Any], prefix: str = ""):
        super().__init__(config)
        self.prefix = prefix  # of the names under which callers know the inputs
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        positions = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions}.get(config.position_embedding)
        self.embed_positions = positions(config) if positions else None
        self.layers = nn.ModuleList(layers)
        norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.layer_norm = norm if config.final_layer_norm else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    def init_parallel_plans(self) -> None:
        """A stack has no plans of its own: those of the model name the modules of both stacks."""
        for kind in ("tp", "ep", "pp", "fsdp"):
            setattr(self, f"_{kind}_plan", {})

    def look_up(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Rows of the embedding matrix, not yet scaled: `[batch, length]` → `[batch, length, d_model]`."""
        ids_name, embeds_name = f"{self.prefix}input_ids", f"{self.prefix}inputs_embeds"
        if (input_ids is None) == (inputs_embeds is None):
            given = "neither" if input_ids is None else "both"
            raise ValueError(f"exactly one of {ids_name} and {embeds_name} must be given, got {given}.")
        if inputs_embeds is not None:
            return check_shape(embeds_name, inputs_embeds, "batch", "length", self.config.d_model)
        assert input_ids is not None
        if check_shape(ids_name, input_ids, "batch", "length").is_floating_point():
            raise ValueError(f"{ids_name} must be integers, got {input_ids.dtype}.")
        try:
            return self.embed_tokens(input_ids)
        except IndexError as error:
            raise out_of_vocabulary(ids_name, input_ids, self.config.vocab_size) from error

    def embed(self, inputs_embeds: Tensor, start: int | Tensor, end: int | None) -> Tensor:
        """Scale, add positions from index `start` on, drop out: `[batch, length, d_model]` in and out."""
        hidden_states = inputs_embeds * self.embed_scale
        if self.embed_positions is not None:
            positions = self.embed_positions(start, inputs_embeds.shape[1], end)
            hidden_states = hidden_states + positions.to(hidden_states.dtype)
        return dropout(hidden_states, self.config.dropout, self.training)


def check_shape(name: str, tensor: Tensor, *shape: int | str) -> Tensor:
    """Refuse a tensor of another shape. A string names a size that may be any, but no sequence may be empty."""
    sizes = zip(tensor.shape, shape, strict=False)
    fits = all(size == wanted if isinstance(wanted, int) else size or wanted == "batch" for size, wanted in sizes)
    if tensor.dim() != len(shape) or not fits:
        raise ValueError(f"{name} must have shape [{', '.join(map(str, shape))}], got {list(tensor.shape)}.")
    return tensor


def check_padding_mask(name: str, mask: Tensor | None, batch: int, length: int) -> None:
    """Refuse a padding mask that does not fit its tokens; four dimensions are a mask that the caller made."""
    if mask is not None and mask.dim() != 4:
        check_shape(name, mask, batch, length)


def out_of_vocabulary(name: str, ids: Tensor, vocab_size: int) -> ValueError:
    """What the CPU's IndexError means. Told after the fact, so that looking up good ids costs nothing more."""
    lowest, highest = ids.min().item(), ids.max().item()
    return ValueError(f"{name} must be in the vocabulary, 0 to {vocab_size - 1}, got ids from {lowest} to {highest}.")


class RandomTransformerEncoder(RandomTransformerStack):
    """The stack of encoder blocks (paper 3.1, Figure 1 left)."""

    _can_record_outputs = {"hidden_states": RandomTransformerEncoderLayer, "attentions": RandomTransformerAttention}

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config, [RandomTransformerEncoderLayer(config, i) for i in range(config.encoder_layers)])

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode sources; the arguments are those of `RandomTransformerModel.forward`."""
        inputs_embeds = self.look_up(input_ids, inputs_embeds)
        check_padding_mask("attention_mask", attention_mask, *inputs_embeds.shape[:2])
        hidden_states = self.embed(inputs_embeds, start=0, end=inputs_embeds.shape[1])
        mask = create_bidirectional_mask(self.config, hidden_states, attention_mask)
        for layer in self.layers:
            hidden_states = layer(hidden_states, mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class RandomTransformerDecoder(RandomTransformerStack):
    """The stack of decoder blocks (paper 3.1, Figure 1 right)."""

    _can_record_outputs = {
        "hidden_states": OutputRecorder(RandomTransformerDecoderLayer),
        "attentions": OutputRecorder(RandomTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(RandomTransformerAttention, index=1, layer_name="encoder_attn"),
    }
    # What output_hidden_states=[-1] counts back from. In transformers 5.17 the recorder has no argument for it.
    _can_record_outputs["hidden_states"].num_hidden_layers_key = "decoder_layers"

    def __init__(self, config: RandomTransformerConfig):
        layers = [RandomTransformerDecoderLayer(config, i) for i in range(config.decoder_layers)]
        super().__init__(config, layers, prefix="decoder_" if config.is_encoder_decoder else "")

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> DecoderOutput:
        """Predict from the target so far and the encoded source, `[sources, source_len, d_model]`.

        The target's batch is a multiple of `sources`: consecutive rows share one source, as beams do. `position_ids`,
        `[batch or 1, length]`, are the tokens' positions where they are not their places in the sequence. A decoder
        without a source counts them without the padding. The other arguments are those of
        `RandomTransformerModel.forward`.
        """
        if encoder_hidden_states is not None and not self.config.is_encoder_decoder:
            shape = list(encoder_hidden_states.shape)
            raise ValueError(f"encoder_hidden_states must be None for a model without cross-attention, got {shape}.")
        inputs_embeds = self.look_up(input_ids, inputs_embeds)
        cache = encoder_decoder_cache(past_key_values, create=bool(use_cache) and not self.training)
        batch, length, _ = inputs_embeds.shape
        start, seen_len = token_range(cache, length)
        end: int | None = seen_len
        if isinstance(start, int):
            check_padding_mask(f"{self.prefix}attention_mask", attention_mask, batch, seen_len)
        if position_ids is not None:
            end = self.end_of_positions(position_ids, length)
        elif not self.config.is_encoder_decoder and attention_mask is not None and attention_mask.dim() == 2:
            position_ids = (attention_mask.cumsum(dim=1) - 1).clamp(min=0)[:, -length:]
        if position_ids is not None:
            start = position_ids - torch.arange(length, device=position_ids.device)
        hidden_states = self.embed(inputs_embeds, start, end)
        seen = None if cache is None else cache.self_attention_cache
        mask = create_causal_mask(self.config, hidden_states, attention_mask, seen, position_ids=position_ids)
        source_mask = None
        if encoder_hidden_states is not None:
            source_mask = self.source_mask(hidden_states, encoder_hidden_states, encoder_attention_mask)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, mask, encoder_hidden_states, source_mask, past_key_values=cache, **kwargs
            )
        return DecoderOutput(self.layer_norm(hidden_states), past_key_values=cache)

    def end_of_positions(self, position_ids: Tensor, length: int) -> int | None:
        """One more than the highest of a caller's positions; `None` on a GPU, which the answer would synchronize.

        There, `LearnedPositions` raises a device-side assertion for positions that it does not have.
        """
        check_shape("position_ids", position_ids, "batch", length)
        if position_ids.device.type != "cpu" or position_ids.numel() == 0 or is_transformed():
            return None
        lowest, highest = (int(position) for position in position_ids.aminmax())
        limit = self.config.max_position_embeddings
        if self.config.position_embedding == "learned" and highest >= limit:
            raise ValueError(f"position_ids must be below max_position_embeddings={limit}, got up to {highest}.")
        if lowest < 0:
            raise ValueError(f"position_ids must be at least 0, got {lowest}.")
        return highest + 1

    def source_mask(self, states: Tensor, source_states: Tensor, padding_mask: Tensor | None) -> Tensor | None:
        """The mask of cross-attention, for queries grouped by source."""
        check_shape("encoder_outputs", source_states, "batch", "length", self.config.d_model)
        sources, source_len, _ = source_states.shape
        if states.shape[0] % max(sources, 1):
            raise ValueError(
                f"decoder_input_ids must have a multiple of the sources' {sources} rows, got {states.shape[0]}."
            )
        check_padding_mask("attention_mask", padding_mask, sources, source_len)
        return create_bidirectional_mask(self.config, group_by_source(states, sources), padding_mask, source_states)


def as_encoder_output(outputs: Any) -> BaseModelOutput:
    """The fields that an encoder returns, from any class of outputs or from a tuple in their order."""
    names = ("last_hidden_state", "hidden_states", "attentions")
    if isinstance(outputs, Mapping):
        fields = {name: outputs.get(name) for name in names}
    else:
        fields = dict(zip(names, outputs, strict=False)) if isinstance(outputs, (tuple, list)) else {}
    if not isinstance(fields.get("last_hidden_state"), Tensor):
        raise ValueError(
            f"encoder_outputs must be a ModelOutput with a last_hidden_state or a tuple, got {type(outputs).__name__}."
        )
    return BaseModelOutput(**fields)


def encoder_decoder_cache(past_key_values: Cache | None, create: bool) -> EncoderDecoderCache | None:
    """The caller's cache with room for the source's keys and values; a new one if there is none and `create`."""
    if isinstance(past_key_values, EncoderDecoderCache) or (past_key_values is None and not create):
        return past_key_values
    return EncoderDecoderCache(DynamicCache() if past_key_values is None else past_key_values, DynamicCache())


def token_range(cache: EncoderDecoderCache | None, length: int) -> tuple[int | Tensor, int]:
    """Where the next `length` tokens start, and an end that none of them passes and that the host knows."""
    if cache is None:
        return 0, length
    start = cache.get_seq_length()
    # A static cache counts on the device: its capacity stands in for the count.
    return (start, cache.get_max_length()) if isinstance(start, Tensor) else (start, start + length)


class RandomTransformerModel(RandomTransformerPreTrainedModel):
    """Encoder and decoder, without the output layer (paper Figure 1)."""

    stacks: dict[str, Any] = {"encoder": RandomTransformerEncoder, "decoder": RandomTransformerDecoder}

    def __init__(self, config: RandomTransformerConfig):
        if len(self.stacks) > 1:  # the folder of a head on one stack says otherwise
            config = config.changed(is_encoder_decoder=True)
        super().__init__(config)
        if config.share_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model)
            self._tied_weights_keys = {f"{stack}.embed_tokens.weight": "shared.weight" for stack in self.stacks}
        for name, stack in self.stacks.items():
            setattr(self, name, stack(config))
        self.post_init()

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Sharing between the stacks follows `share_embeddings`; the library would ask `tie_word_embeddings`."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {})

    def init_parallel_plans(self) -> None:
        """Without what this model has not: a stack, shared embeddings, a name that transformers 5.17 adds."""
        super().init_parallel_plans()
        own = {re.sub(r"\.\d+\.", ".*.", name) for name, _ in self.named_modules()}
        self._tp_plan = {name: plan for name, plan in self.tp_plan.items() if name in own}

    def get_input_embeddings(self) -> nn.Embedding:
        return self.shared if self.config.share_embeddings else getattr(self, next(iter(self.stacks))).embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        if self.config.share_embeddings:
            self.shared = value
        for name in self.stacks if self.config.share_embeddings else list(self.stacks)[:1]:
            getattr(self, name).embed_tokens = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: ModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> Seq2SeqModelOutput:
        """Encode the source, then run the decoder over the target.

        Args:
            input_ids: source ids, `[batch, source_len]`.
            attention_mask: 1 for source tokens, 0 for padding, `[batch, source_len]`.
            decoder_input_ids: target ids, shifted right, `[batch, target_len]`; with a cache only the new ones.
            decoder_attention_mask: 1 for target tokens, 0 for padding, `[batch, seen_len + target_len]`.
            encoder_outputs: the output of the encoder, to use in place of running it: any `ModelOutput` with a
                `last_hidden_state`, or a tuple that starts with it.
            past_key_values: the decoder's cache, extended in place.
            inputs_embeds: rows of the embedding matrix, not yet scaled, in place of `input_ids`,
                `[batch, source_len, d_model]`.
            decoder_inputs_embeds: the same for the target, `[batch, target_len, d_model]`.
            use_cache: return a cache for the next step.

        Returns:
            The decoder's states `[batch, target_len, d_model]`, and what else was asked for.

        Raises:
            ValueError: an input is missing, of a wrong shape or outside the vocabulary.
        """
        if encoder_outputs is None:
            encoded = self.encoder(input_ids, attention_mask, inputs_embeds, **kwargs)
        else:
            encoded = as_encoder_output(encoder_outputs)
        inputs = (decoder_input_ids, decoder_attention_mask, encoded.last_hidden_state, attention_mask)
        decoder_outputs = self.decoder(*inputs, past_key_values, decoder_inputs_embeds, use_cache=use_cache, **kwargs)
        return Seq2SeqModelOutput(
            last_hidden_state=decoder_outputs.last_hidden_state,
            past_key_values=decoder_outputs.past_key_values,
            decoder_hidden_states=decoder_outputs.hidden_states,
            decoder_attentions=decoder_outputs.attentions,
            cross_attentions=decoder_outputs.cross_attentions,
            **{f"encoder_{name}": value for name, value in encoded.items()},
        )


class RandomTransformerLanguageModel(RandomTransformerPreTrainedModel):
    """A model and the output layer, which is tied to the embedding of the model's last stack (paper 3.4)."""

    def __init__(self, config: RandomTransformerConfig, model: type[RandomTransformerModel]):
        super().__init__(config)
        *_, stack = model.stacks
        embedding = "model.shared.weight" if config.share_embeddings else f"model.{stack}.embed_tokens.weight"
        self._tied_weights_keys = {"lm_head.weight": embedding}
        self.model = model(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()


class RandomTransformerForConditionalGeneration(RandomTransformerLanguageModel, RandomTransformerGenerationMixin):
    """The whole of Figure 1: encoder, decoder and output layer, with the library's `generate()`."""

    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config.changed(is_encoder_decoder=True), RandomTransformerModel)
        self.loss_function = token_loss

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: ModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> Seq2SeqLMOutput:
        """Score the next token at every position of the target, and the labels if given.

        Args:
            labels: target ids, `[batch, target_len]`, -100 where nothing is to be predicted. Without decoder inputs
                they are also the decoder's input, shifted right behind `decoder_start_token_id`.
            logits_to_keep: compute logits for the last so many positions only (0: all), or for these positions.

        The other arguments are those of `RandomTransformerModel.forward`.

        Returns:
            Logits `[batch, target_len, vocab_size]`, and with labels the mean cross-entropy in nats per token.

        Raises:
            ValueError: an input is missing, of a wrong shape or outside the vocabulary.
        """
        if isinstance(past_key_values, DecodingCache) and decoder_input_ids is not None:
            others = (labels, decoder_attention_mask, decoder_inputs_embeds, *kwargs.values())
            if past_key_values.takes(decoder_input_ids, *others):
                # A step of generate(): the cache has the keys and values of the source and of all earlier tokens.
                logits = past_key_values.step(self, decoder_input_ids, attention_mask)
                return Seq2SeqLMOutput(logits=logits, past_key_values=past_key_values)
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        inputs = (input_ids, attention_mask, decoder_input_ids, decoder_attention_mask, encoder_outputs)
        outputs = self.model(*inputs, past_key_values, inputs_embeds, decoder_inputs_embeds, use_cache, **kwargs)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(outputs.last_hidden_state[:, kept])
        loss = None
        if labels is not None:
            check_shape("labels", labels, *logits.shape[:2])
            try:
                loss = self.loss_function(logits, labels, self.config.vocab_size, **kwargs)
            except IndexError as error:
                raise out_of_vocabulary("labels that are not -100", labels, self.config.vocab_size) from error
        passed_on = {name: value for name, value in outputs.items() if name != "last_hidden_state"}
        return Seq2SeqLMOutput(loss=loss, logits=logits, **passed_on)

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Labels shifted right behind the start token, ignored ones read as padding: `[batch, target_len]` in and out.

        Raises:
            ValueError: the configuration has no start token or no padding token, or the shape is wrong.
        """
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise ValueError(f"decoder_start_token_id and pad_token_id must be set for labels, got {start} and {pad}.")
        check_shape("labels", labels, "batch", "target_len")
        shifted = nn.functional.pad(labels[:, :-1], (1, 0), value=start)
        return shifted.masked_fill(shifted == -100, pad)


# The steps of generate() do not call these modules, and have to notice where one of them computes something else.
record_methods(
    RandomTransformerForConditionalGeneration,
    RandomTransformerModel,
    RandomTransformerDecoder,
    RandomTransformerDecoderLayer,
    RandomTransformerAttention,
)
