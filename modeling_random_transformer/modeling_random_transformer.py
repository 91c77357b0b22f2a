"""The Transformer of "Attention Is All You Need", in the order of the paper's Figure 1, then its task heads.

Positions, attention, and the layers of encoder and decoder are first. The settings for transformers precede the classes
that need them: encoder, decoder, and the complete model with the output layer. Input checks and task heads follow.
transformers provides masks, caches, attention kernels and search. Device-specific code is in `ops_random_transformer`.

In shapes, `batch` is the number of sequences, `source_len` and `target_len` are numbers of tokens, and `heads` is the
number of attention heads.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Unpack

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    Seq2SeqLMOutput,
    Seq2SeqModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions as DecoderOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import ModelOutput, TransformersKwargs, can_return_tuple
from transformers.utils.generic import merge_with_config_defaults
from transformers.utils.output_capturing import OutputRecorder, capture_outputs

from .configuration_random_transformer import RandomTransformerConfig
from .generation_random_transformer import (
    RandomTransformerGenerationMixin,
    as_encoder_output,
    check_cache,
    check_target_rows,
)
from .ops_random_transformer import (
    IGNORE_INDEX,
    fast_dropout,
    float64_device,
    is_traced,
    masked_softmax,
    may_omit_mask,
    select_attention,
    smoothed_cross_entropy,
)
from .quantization_random_transformer import Int8Linear  # importing the file registers the quantization method
from .verification_random_transformer import VerifiedGenerationMixin
from .versions_random_transformer import (
    CACHE_NAME,
    UNTESTED_ADVICE,
    CheckpointedLayer,
    accepts_cache,
    cache_of,
    named_cache,
)

# Positions, attention and layers (paper Figure 1)


def sinusoids(positions: Tensor, d_model: int, layout: str = "interleaved") -> Tensor:
    """sin(p / 10000^(2i/d)) and cos(p / 10000^(2i/d)) (paper 3.5), interleaved or all sines first (`"concatenated"`).

    Integer positions `[…, length]` → `[…, length, d_model]` in float32 on the device of the positions. Computed in
    float64, on the CPU if the device has none.
    """
    device = float64_device(positions.device)
    two_i = torch.arange(0, d_model, 2, dtype=torch.float64, device=device)
    angles = positions.to(device, torch.float64)[..., None] / 10000 ** (two_i / d_model)  # […, length, d_model / 2]
    waves = torch.stack([angles.sin(), angles.cos()], dim=-1)  # […, length, d_model / 2, 2]
    if layout == "concatenated":
        waves = waves.transpose(-1, -2)
    return waves.flatten(-2).to(torch.float32).to(positions.device)


class SinusoidalPositions(nn.Module):
    """Sinusoids for sequences of any length (paper 3.5). They have no parameters and are not saved in checkpoints."""

    table: Tensor  # [max_position_embeddings, d_model], computed in advance

    def __init__(self, config: RandomTransformerConfig):
        super().__init__()
        self.config = config
        table = torch.empty(config.max_position_embeddings, config.d_model, dtype=torch.float32)
        self.register_buffer("table", table, persistent=False)
        self.reset_parameters()

    def forward(self, positions: Tensor, position_limit: int | None) -> Tensor:
        """Encodings of positions in a sequence, `[…, length]` → `[…, length, d_model]`.

        `position_limit` is an upper bound on position + 1, or `None` to avoid reading it from the device.
        """
        # Comparing the limit with the length of the table would make it a constant of a traced graph.
        if position_limit is None or is_traced() or position_limit > len(self.table) or self.table.is_meta:
            return self.encode(positions)
        return nn.functional.embedding(positions, self.table)

    def encode(self, positions: Tensor) -> Tensor:
        """Encodings of positions in a sequence, without the table: `[…, length]` → `[…, length, d_model]`."""
        return sinusoids(positions + self.config.position_offset, self.config.d_model, self.config.sinusoid_layout)

    def reset_parameters(self) -> None:
        """Compute the table. PyTorch's loaders of models on the meta device call a method of this name."""
        init.copy_(self.table, self.encode(torch.arange(len(self.table), device=self.table.device)))

    def _apply(self, *args: Any, **kwargs: Any) -> "SinusoidalPositions":  # called by .to(), .half(), .to_empty() …
        table = self.table
        super()._apply(*args, **kwargs)
        if self.table.is_meta:
            return self
        rounded = self.table.dtype != table.dtype
        # The table is computed again after to_empty(), which returns uninitialized memory, and in another dtype, so
        # that encodings are rounded once. An edited table keeps its values on another device.
        if rounded or table.is_meta or not torch.equal(table.to(self.table), self.table):
            self.reset_parameters()
        return self


class LearnedPositions(nn.Embedding):
    """A learned vector per position (paper 3.5; Table 3, row E)."""

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config.max_position_embeddings + config.position_offset, config.d_model)
        self.config = config

    def forward(self, positions: Tensor, position_limit: int | None) -> Tensor:  # type: ignore[override]
        """The vectors of positions. The arguments are those of `SinusoidalPositions.forward`.

        Raises:
            ValueError: `position_limit` and a position are above `max_position_embeddings`.
        """
        count = self.config.max_position_embeddings
        # The limit may include padding, or be the capacity of a cache. Positions are read only if it is too large.
        if position_limit is not None and position_limit > count and positions.max() >= count:
            raise ValueError(f"sequence length must be at most max_position_embeddings={count}, got {position_limit}.")
        return super().forward(positions + self.config.position_offset)


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
    """softmax(Q·Kᵀ · scaling)·V (paper 3.2.1), the reference for the other attention implementations.

    By default, SDPA computes attention. `model.set_attn_implementation("eager")` selects this function.

    `query` and `key` are `[batch, heads, query_len or key_len, d_k]`, `value` is `[batch, heads, key_len, d_v]`. The
    mask, `[batch, 1, query_len, key_len]`, is boolean, or 0 for visible keys and the dtype's minimum for hidden ones.
    Returns outputs `[batch, query_len, heads, d_v]` and weights `[batch, heads, query_len, key_len]`.
    """
    scores = torch.matmul(query, key.transpose(-1, -2)) * scaling
    weights = masked_softmax(scores, attention_mask).to(query.dtype)
    outputs = nn.functional.dropout(weights, p=dropout, training=module.training) @ value
    return outputs.transpose(1, 2), weights


class RandomTransformerAttention(nn.Module):
    """Multi-head attention (paper 3.2.2): self-attention, or cross-attention with `key_value_states`."""

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

    @accepts_cache
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        key_value_states: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `hidden_states`, `[batch, query_len, d_model]`, to themselves or to `key_value_states`.

        `key_value_states` are `[sources, source_len, d_model]`. If `batch` is a multiple of `sources`, consecutive rows
        share a source, as beams do. Returns new states, `[batch, query_len, d_model]`, and the weights
        `[batch, heads, query_len, key_len]` if the attention implementation returns them.
        """
        batch, query_len, d_model = hidden_states.shape
        is_cross_attention = key_value_states is not None
        attended = hidden_states if key_value_states is None else key_value_states
        key, value = self.keys_and_values(attended, cache, is_cross_attention)
        if is_cross_attention:
            hidden_states = group_by_source(hidden_states, sources=key.shape[0])
        query = self.split_heads(self.q_proj(hidden_states), self.config.d_k)

        implementation, attention_mask = select_attention(
            implementation=self.config._attn_implementation,
            query=query,
            key=key,
            attention_mask=attention_mask,
            is_causal=self.is_causal,
            is_cross_attention=is_cross_attention,
        )
        # A mask of `None` hides nothing, except in causal self-attention with SDPA, which then reads `is_causal`. To
        # replace the formula here, use eager attention, whose causal mask is never `None`.
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(implementation, eager_attention_forward)
        rate = self.config.attention_dropout if self.training else 0.0
        outputs, weights = attend(self, query, key, value, attention_mask, scaling=self.scaling, dropout=rate, **kwargs)

        outputs = self.out_proj(outputs.flatten(2)).view(batch, query_len, d_model)
        return outputs, None if weights is None else ungroup_weights(weights, batch, query_len)

    def keys_and_values(
        self, states: Tensor, cache: EncoderDecoderCache | None, is_cross_attention: bool
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of the source or of the target so far, `[batch or sources, heads, key_len, d_k or d_v]`.

        New target tokens are appended to the cache. After the first pass, it also contains the source.
        """
        if is_cross_attention and cache is not None and cache.is_updated.get(self.layer_idx):
            source = cache.cross_attention_cache.layers[self.layer_idx]
            return source.keys, source.values
        key = self.split_heads(self.k_proj(states), self.config.d_k)
        value = self.split_heads(self.v_proj(states), self.config.d_v)
        if cache is None:
            return key, value
        if is_cross_attention:
            cache.is_updated[self.layer_idx] = True
            return cache.cross_attention_cache.update(key, value, self.layer_idx)
        return cache.self_attention_cache.update(key, value, self.layer_idx)

    @staticmethod
    def split_heads(projected: Tensor, width: int) -> Tensor:
        """`[batch, length, heads · width]` → `[batch, heads, length, width]`, for the heads of this device's shard."""
        return projected.unflatten(2, (-1, width)).transpose(1, 2)


class RandomTransformerLayer(CheckpointedLayer):
    """Base of encoder and decoder layers, with the sub-layers of both and "Add & Norm" of Figure 1."""

    def __init__(self, config: RandomTransformerConfig, layer_idx: int, is_causal: bool):
        super().__init__()
        self.config = config
        self.self_attn = RandomTransformerAttention(config, layer_idx, is_causal=is_causal)
        self.self_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.fc1 = nn.Linear(config.d_model, config.d_ff)
        self.fc2 = nn.Linear(config.d_ff, config.d_model)
        self.activation_fn = ACT2FN[config.activation_function]
        # The usual name for the norm of the feed-forward network. `config.final_layer_norm` refers to the stacks.
        self.final_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    def norm_before(self, norm: nn.Module, states: Tensor) -> Tensor:
        """The input of a sub-layer: the normalized states with `norm_order="pre"`, otherwise the states."""
        return norm(states) if self.config.norm_order == "pre" else states

    def norm_after(self, norm: nn.Module, states: Tensor) -> Tensor:
        """The states after a residual connection: normalized with `norm_order="post"` (paper 3.1), or unchanged."""
        return states if self.config.norm_order == "pre" else norm(states)

    def dropout(self, states: Tensor) -> Tensor:
        """Dropout on the output of a sub-layer (paper 5.4)."""
        return fast_dropout(states, self.config.dropout, self.training)

    def feed_forward(self, states: Tensor) -> Tensor:
        """FFN(x) = max(0, x·W₁ + b₁)·W₂ + b₂ (paper 3.3): `[batch, length, d_model]` in and out."""
        inner = self.activation_fn(self.fc1(states))
        return self.fc2(fast_dropout(inner, self.config.activation_dropout, self.training))


class RandomTransformerEncoderLayer(RandomTransformerLayer):
    """Self-attention and feed-forward network (paper 3.1, Figure 1 left)."""

    def __init__(self, config: RandomTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx, is_causal=False)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **kwargs: Any) -> Tensor:
        """`[batch, source_len, d_model]` in and out."""
        states = self.norm_before(self.self_attn_layer_norm, hidden_states)
        states, _ = self.self_attn(states, attention_mask=attention_mask, **kwargs)
        hidden_states = self.norm_after(self.self_attn_layer_norm, hidden_states + self.dropout(states))

        states = self.feed_forward(self.norm_before(self.final_layer_norm, hidden_states))
        return self.norm_after(self.final_layer_norm, hidden_states + self.dropout(states))


class RandomTransformerDecoderLayer(RandomTransformerLayer):
    """Masked self-attention, cross-attention and feed-forward network (paper 3.1, Figure 1 right)."""

    def __init__(self, config: RandomTransformerConfig, layer_idx: int):
        super().__init__(config, layer_idx, is_causal=True)
        if config.is_encoder_decoder:
            self.encoder_attn = RandomTransformerAttention(config, layer_idx)
            self.encoder_attn_layer_norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)

    @accepts_cache
    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None,
        encoder_hidden_states: Tensor | None,
        encoder_attention_mask: Tensor | None = None,
        cache: EncoderDecoderCache | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """States `[batch, target_len, d_model]` in and out; the encoded source is `[sources, source_len, d_model]`."""
        kwargs |= named_cache(cache)
        states = self.norm_before(self.self_attn_layer_norm, hidden_states)
        states, _ = self.self_attn(states, attention_mask=attention_mask, **kwargs)
        hidden_states = self.norm_after(self.self_attn_layer_norm, hidden_states + self.dropout(states))

        if encoder_hidden_states is not None:
            states = self.norm_before(self.encoder_attn_layer_norm, hidden_states)
            states, _ = self.encoder_attn(
                states,
                attention_mask=encoder_attention_mask,
                key_value_states=encoder_hidden_states,
                **kwargs,
            )
            hidden_states = self.norm_after(self.encoder_attn_layer_norm, hidden_states + self.dropout(states))

        states = self.feed_forward(self.norm_before(self.final_layer_norm, hidden_states))
        return self.norm_after(self.final_layer_norm, hidden_states + self.dropout(states))


# Settings for transformers, which the stacks and all models have


class RandomTransformerPreTrainedModel(PreTrainedModel):
    """Base of all models in this file: settings and initialization."""

    config_class = RandomTransformerConfig
    config: RandomTransformerConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["RandomTransformerEncoderLayer", "RandomTransformerDecoderLayer"]
    _skip_keys_device_placement = [CACHE_NAME]
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    _can_compile_fullgraph = True
    int8_linear_class = Int8Linear  # DynamicInt8Quantizer may be from another copy of these files

    def __init__(self, config: RandomTransformerConfig, *args: Any, **kwargs: Any):
        super().__init__(config, *args, **kwargs)
        config.validate()  # a field may have been set after the configuration was created

    def post_init(self) -> None:
        super().post_init()
        has_tied_output = getattr(self, "lm_head", None) is not None and self.config.tie_word_embeddings
        if has_tied_output and "lm_head.weight" not in self.all_tied_weights_keys:
            raise RuntimeError(f"transformers does not tie the output layer. {UNTESTED_ADVICE}")
        # save_pretrained copies the file of this module. FSDP2's `fully_shard` changes the class of the model to a
        # subclass from another module.
        self.__module__ = type(self).__module__

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Xavier for projections, N(0, 1/d_model) for embeddings: scaled by sqrt(d_model) they have unit variance."""
        if isinstance(module, Int8Linear):  # weights that a checkpoint does not contain
            init.zeros_(module.weight)
            init.zeros_(module.weight_scale)
        elif isinstance(module, nn.Embedding) or module is getattr(self, "lm_head", None):
            init.normal_(module.weight, std=self.config.d_model**-0.5)
        elif isinstance(module, nn.Linear):
            init.xavier_uniform_(module.weight)
        elif isinstance(module, nn.LayerNorm):
            init.ones_(module.weight)
        elif isinstance(module, SinusoidalPositions):
            module.reset_parameters()
        else:  # modules that an edit has added
            super()._init_weights(module)
        if getattr(module, "bias", None) is not None:
            init.zeros_(module.bias)

    def init_parallel_plans(self) -> None:
        """Restrict the parallelism plans to modules of this model. The configuration's plans name both stacks."""
        super().init_parallel_plans()
        modules = {re.sub(r"\.\d+\b", ".*", name) for name, _ in self.named_modules()}
        self._tp_plan = {name: plan for name, plan in self.tp_plan.items() if name in modules}
        self._fsdp_plan = {name: plan for name, plan in self.fsdp_plan.items() if name in modules}

    def get_correct_attn_implementation(self, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
        """The attention implementation for a request. Raises a ValueError for Flash attention with d_k ≠ d_v."""
        d_k, d_v = self.config.d_k, self.config.d_v
        if requested_attention is not None and "flash_attention" in requested_attention and d_k != d_v:
            raise ValueError(
                f"attn_implementation must be 'eager', 'sdpa' or 'flex_attention' with d_k={d_k}, d_v={d_v}, "
                f"got {requested_attention!r}."
            )
        return super().get_correct_attn_implementation(requested_attention, *args, **kwargs)

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """The tied weights. An int8 output layer is not tied: its weights are a quantized copy of the embedding."""
        keys = super().get_expanded_tied_weights_keys(all_submodels)
        if isinstance(self.get_output_embeddings(), Int8Linear):
            keys.pop("lm_head.weight", None)
        return keys

    def _apply(self, *args: Any, **kwargs: Any) -> "RandomTransformerPreTrainedModel":  # called by .to(), .to_empty() …
        was_meta = self.device.type == "meta"
        super()._apply(*args, **kwargs)
        if was_meta:  # to_empty() has replaced a tied parameter at each place by another one
            self.tie_weights()
        return self

    def load_state_dict(self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False) -> Any:
        """Load weights. `assign=True` replaces each tied parameter separately, so equal parameters are tied again."""
        result = super().load_state_dict(state_dict, strict=strict, assign=assign)
        if assign:
            self.tie_weights(missing_keys=set(result.missing_keys))
        return result

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the embeddings of both stacks, since source and target share one vocabulary.

        Returns:
            The input embedding, with a weight of `[vocab_size, d_model]`.

        Raises:
            ValueError: the output layer is quantized.
        """
        if isinstance(self.get_output_embeddings(), Int8Linear):
            raise ValueError("the output layer must not be quantized to resize the vocabulary, got int8 weights.")
        model = self.base_model
        if not self.config.share_embeddings and hasattr(model, "encoder") and hasattr(model, "decoder"):
            model.decoder.resize_token_embeddings(*args, **kwargs)
        return super().resize_token_embeddings(*args, **kwargs)


class RandomTransformerBaseModel(RandomTransformerPreTrainedModel):
    """Base of the models without a head. It holds the embedding of the model's one or two stacks."""

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config)
        if config.share_embeddings:
            self.shared = nn.Embedding(config.vocab_size, config.d_model)

    @property
    def stacks(self) -> list["RandomTransformerStack"]:
        """The encoder, the decoder or both, in this order."""
        return [module for module in self.children() if isinstance(module, RandomTransformerStack)]

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Share embeddings if `share_embeddings` is set. The default of transformers is `tie_word_embeddings`."""
        if all_submodels:
            return super().get_expanded_tied_weights_keys(all_submodels=True)
        return dict(self._tied_weights_keys or {}) if self.config.share_embeddings else {}

    def get_input_embeddings(self) -> nn.Embedding:
        return self.shared if self.config.share_embeddings else self.stacks[0].embed_tokens

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        if self.config.share_embeddings:
            self.shared = value
        for stack in self.stacks if self.config.share_embeddings else self.stacks[:1]:
            stack.embed_tokens = value


# The encoder, the decoder and the complete model (paper Figure 1)


class RandomTransformerStack(RandomTransformerPreTrainedModel):
    """Base of encoder and decoder: embeddings, positional encodings and N layers (paper 3.1, 3.4, 3.5)."""

    input_prefix = ""  # the prefix of the inputs' names in error messages

    def __init__(self, config: RandomTransformerConfig, layer_class: Callable[..., nn.Module], layers: int):
        super().__init__(config)
        self.embed_scale = math.sqrt(config.d_model) if config.scale_embedding else 1.0
        self.embed_tokens = nn.Embedding(config.vocab_size, config.d_model)
        position_class = {"sinusoidal": SinusoidalPositions, "learned": LearnedPositions}.get(config.position_embedding)
        self.embed_positions = position_class(config) if position_class else None
        self.layers = nn.ModuleList([layer_class(config, layer_idx) for layer_idx in range(layers)])
        # Pre-norm models usually have one more norm after the last layer.
        norm = nn.LayerNorm(config.d_model, eps=config.layer_norm_eps)
        self.layer_norm = norm if config.final_layer_norm else nn.Identity()
        self.gradient_checkpointing = False
        self.post_init()

    def embed(self, tokens: Tensor, positions: Tensor, position_limit: int | None) -> Tensor:
        """Scaled embeddings plus positional encodings, with dropout: `[batch, length, d_model]`.

        Args:
            tokens: ids, `[batch, length]`, or their rows of the embedding matrix, `[batch, length, d_model]`.
            positions: indices of the tokens in the sequence, `[length]` or `[batch or 1, length]`.
            position_limit: an upper bound on position + 1, or `None` to avoid reading it from the device.
        """
        hidden_states = self.look_up(tokens) * self.embed_scale
        if self.embed_positions is not None:  # a device map may place it on another device
            hidden_states = hidden_states + self.embed_positions(positions, position_limit).to(hidden_states)
        return fast_dropout(hidden_states, self.config.dropout, self.training)

    def look_up(self, tokens: Tensor) -> Tensor:
        """The tokens' rows of the embedding matrix, before scaling. Tokens that are embeddings are returned."""
        try:
            return tokens if tokens.is_floating_point() else self.embed_tokens(tokens)
        except IndexError as error:  # a CPU reports invalid ids here, so checking valid ids costs nothing
            raise ValueError(
                f"{self.input_prefix}input_ids must be in the vocabulary, 0 to {self.config.vocab_size - 1}, "
                f"got ids from {tokens.min()} to {tokens.max()}."
            ) from error


class RandomTransformerEncoder(RandomTransformerStack):
    """Embeddings and N encoder layers (paper 3.1, Figure 1 left)."""

    _can_record_outputs = {"hidden_states": RandomTransformerEncoderLayer, "attentions": RandomTransformerAttention}

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config, RandomTransformerEncoderLayer, config.encoder_layers)

    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Encode sources; the arguments are those of `RandomTransformerModel.forward`."""
        tokens = checked_tokens(self, input_ids, inputs_embeds)
        batch, length = tokens.shape[:2]
        check_padding_mask("attention_mask", attention_mask, batch, length)
        hidden_states = self.embed(tokens, torch.arange(length, device=tokens.device), position_limit=length)
        mask = create_bidirectional_mask(
            self.config, hidden_states, attention_mask, allow_is_bidirectional_skip=may_omit_mask(attention_mask)
        )
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask=mask, **kwargs)
        return BaseModelOutput(last_hidden_state=self.layer_norm(hidden_states))


class RandomTransformerDecoder(RandomTransformerStack):
    """Embeddings and N decoder layers (paper 3.1, Figure 1 right)."""

    _can_record_outputs = {
        "hidden_states": OutputRecorder(RandomTransformerDecoderLayer),
        "attentions": OutputRecorder(RandomTransformerAttention, index=1, layer_name="self_attn"),
        "cross_attentions": OutputRecorder(RandomTransformerAttention, index=1, layer_name="encoder_attn"),
    }
    # The number of layers, from which negative indices in output_hidden_states count. `OutputRecorder` of transformers
    # 5.17 has no argument for it.
    _can_record_outputs["hidden_states"].num_hidden_layers_key = "decoder_layers"

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config, RandomTransformerDecoderLayer, config.decoder_layers)
        self.input_prefix = "decoder_" if config.is_encoder_decoder else ""

    @accepts_cache
    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        position_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> DecoderOutput:
        """Compute the target's hidden states, `[batch, length, d_model]`, from its tokens and the encoded source.

        The source is `[sources, source_len, d_model]`. The target's batch size is a multiple of `sources`, since
        consecutive sequences may share a source, as beams do. `position_ids`, `[batch or 1, length]`, replace the
        tokens' indices in the sequence. A decoder without a source derives the positions from the padding mask. The
        other arguments are those of `RandomTransformerModel.forward`.

        Raises:
            ValueError: an input has a wrong shape, or a cache is given in training with gradient checkpointing.
        """
        tokens = checked_tokens(self, input_ids, inputs_embeds)
        if cache is not None and self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            raise ValueError(
                f"{CACHE_NAME} must be None in training with gradient checkpointing, which computes each layer twice, "
                f"got {type(cache).__name__}."
            )
        full_cache = encoder_decoder_cache(cache, create=bool(use_cache) and not self.training)
        positions, position_limit = target_positions(self, tokens, attention_mask, full_cache, position_ids)
        hidden_states = self.embed(tokens, positions, position_limit)
        mask = create_causal_mask(
            self.config,
            hidden_states,
            attention_mask,
            # Packed texts are separated only without a cache. A cache that was created above must not prevent it.
            None if cache is None or full_cache is None else full_cache.self_attention_cache,
            position_ids=positions if positions.dim() == 2 else None,
            allow_is_causal_skip=may_omit_mask(attention_mask),
        )
        source_mask = None
        if encoder_hidden_states is not None:
            source_mask = cross_attention_mask(self, hidden_states, encoder_hidden_states, encoder_attention_mask)
        for index, layer in enumerate(self.layers):
            set_layer_idx(layer, index)
            hidden_states = layer(
                hidden_states,
                mask,
                encoder_hidden_states,  # positional: gradient checkpointing differentiates positional arguments only
                encoder_attention_mask=source_mask,
                **named_cache(full_cache),
                **kwargs,
            )
        return DecoderOutput(last_hidden_state=self.layer_norm(hidden_states), **named_cache(full_cache))


class RandomTransformerModel(RandomTransformerBaseModel):
    """Encoder and decoder without the output layer (paper Figure 1)."""

    _tied_weights_keys = {
        "encoder.embed_tokens.weight": "shared.weight",
        "decoder.embed_tokens.weight": "shared.weight",
    }

    def __init__(self, config: RandomTransformerConfig):
        config = config.copy_with(is_encoder_decoder=True)  # checkpoints of heads on one stack have False
        super().__init__(config)
        self.encoder = RandomTransformerEncoder(config)
        self.decoder = RandomTransformerDecoder(config)
        self.post_init()

    @accepts_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: ModelOutput | tuple[Tensor, ...] | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> Seq2SeqModelOutput:
        """Encode the source, then run the decoder over the target.

        Args:
            input_ids: source ids, `[batch, source_len]`.
            attention_mask: 1 for source tokens, 0 for padding, `[batch, source_len]`.
            decoder_input_ids: target ids, shifted right, `[batch, target_len]`. With a cache, only the new tokens.
            decoder_attention_mask: 1 for target tokens, 0 for padding, `[batch, seen_len + target_len]`.
            encoder_outputs: the encoder's output, if it was already computed: any `ModelOutput` with a
                `last_hidden_state`, or a tuple that starts with it.
            cache: the decoder's cache, extended in place.
            inputs_embeds: rows of the embedding matrix, not yet scaled, instead of `input_ids`,
                `[batch, source_len, d_model]`.
            decoder_inputs_embeds: the same for the target, `[batch, target_len, d_model]`.
            use_cache: return a cache for the next step.

        Returns:
            The decoder's states `[batch, target_len, d_model]`, the cache, and other requested outputs.

        Raises:
            ValueError: an input is missing, of a wrong shape or outside the vocabulary.
        """
        if encoder_outputs is None:
            source = {"input_ids": input_ids, "attention_mask": attention_mask, "inputs_embeds": inputs_embeds}
            encoded = self.encoder(**source, return_dict=True, **kwargs)  # True, whatever the configuration says
        else:
            encoded = as_encoder_output(encoder_outputs)
        decoded = self.decoder(
            input_ids=decoder_input_ids,
            attention_mask=decoder_attention_mask,
            encoder_hidden_states=encoded.last_hidden_state,
            encoder_attention_mask=attention_mask,
            **named_cache(cache),
            inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=decoded.last_hidden_state,
            **named_cache(cache_of(decoded)),
            decoder_hidden_states=decoded.hidden_states,
            decoder_attentions=decoded.attentions,
            cross_attentions=decoded.cross_attentions,
            **{f"encoder_{name}": value for name, value in encoded.items()},
        )


class RandomTransformerForConditionalGeneration(RandomTransformerPreTrainedModel, RandomTransformerGenerationMixin):
    """The complete model of Figure 1: encoder, decoder and output layer, with transformers' `generate()`.

    The output layer is tied to the decoder's embedding (paper 3.4).
    """

    _tp_plan = {"lm_head": "colwise_gather_output"}

    def __init__(self, config: RandomTransformerConfig):
        config = config.copy_with(is_encoder_decoder=True)  # checkpoints of heads on one stack have False
        super().__init__(config)
        self._tied_weights_keys = output_layer_ties(config, "decoder")
        self.model = RandomTransformerModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        self.loss_function = smoothed_cross_entropy
        self.post_init()

    @accepts_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: ModelOutput | tuple[Tensor, ...] | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        step: Callable[..., Tensor] | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> Seq2SeqLMOutput:
        """Compute the logits of the next token at every position of the target, and the loss of the labels if given.

        Args:
            labels: target ids, `[batch, target_len]`, -100 for positions to ignore. Without decoder inputs they are
                also the decoder's input, shifted right after `decoder_start_token_id`.
            logits_to_keep: compute logits for this number of last positions only (0: all), or for these positions.
            step: computes the logits of the next tokens, `[batch, 1, vocab_size]`, from `decoder_input_ids` instead of
                the modules: the fast decoder step of `generate()`.

        The other arguments are those of `RandomTransformerModel.forward`.

        Returns:
            Logits `[batch, target_len, vocab_size]`, and with labels the mean cross-entropy in nats per token.

        Raises:
            ValueError: an input is missing, of a wrong shape or outside the vocabulary.
        """
        if step is not None:
            return Seq2SeqLMOutput(logits=step(decoder_input_ids), **named_cache(cache))
        if labels is not None:
            use_cache = False
            if decoder_input_ids is None and decoder_inputs_embeds is None:
                decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            encoder_outputs=encoder_outputs,
            **named_cache(cache),
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            use_cache=use_cache,
            return_dict=True,
            **kwargs,
        )
        logits = self.lm_head(kept_positions(outputs.last_hidden_state, logits_to_keep))
        loss = None if labels is None else checked_loss(self, labels, logits.shape[:2], logits, **kwargs)
        return Seq2SeqLMOutput(loss=loss, logits=logits, **fields_without_last_state(outputs))

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """Shift labels right after the start token and replace -100 by padding: `[batch, target_len]` in and out.

        Raises:
            ValueError: the configuration has no start token or no padding token, or the labels have a wrong shape.
        """
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise ValueError(f"decoder_start_token_id and pad_token_id must be set for labels, got {start} and {pad}.")
        check_shape("labels", labels, "batch", "target_len")
        return shift_right(labels, start, pad)

    def save_pretrained(self, *args: Any, **kwargs: Any) -> None:
        """Save the model. An output layer that is tied is saved as tied: the files do not contain its weights."""
        # If it were True, loading would ignore options of generation that transformers lacks, such as `patience`.
        self.generation_config._from_model_config = False
        # peft's merge_and_unload() turns the option off if the output layer differs from the encoder's embedding.
        if self.lm_head.weight is self.model.decoder.embed_tokens.weight:
            self.config.tie_word_embeddings = True
        super().save_pretrained(*args, **kwargs)


# Parts of attention and of the decoder that Figure 1 does not show


def group_by_source(states: Tensor, sources: int) -> Tensor:
    """Concatenate the queries of sequences that share a source, whose keys and values are then not repeated.

    `[batch, query_len, d_model]` → `[sources, batch / sources · query_len, d_model]`.
    """
    return states if states.shape[0] == sources else states.reshape(sources, -1, states.shape[-1])


def ungroup_weights(weights: Tensor, batch: int, query_len: int) -> Tensor:
    """`[sources, heads, batch / sources · query_len, key_len]` → `[batch, heads, query_len, key_len]`."""
    if weights.shape[0] == batch:
        return weights
    rows_and_queries = (batch // weights.shape[0], query_len)
    return weights.unflatten(2, rows_and_queries).transpose(1, 2).flatten(0, 1)


def kept_positions(states: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """The states of the last `kept` positions (0: all positions), or of given positions: `[batch, kept, d_model]`."""
    if isinstance(logits_to_keep, int):
        return states[:, -logits_to_keep:]
    return states[:, logits_to_keep]


def output_layer_ties(config: RandomTransformerConfig, stack: str) -> dict[str, str]:
    """The tied weights (paper 3.4) of a model with an output layer: names of the output layer and of an embedding."""
    embedding = "shared" if config.share_embeddings else f"{stack}.embed_tokens"
    return {"lm_head.weight": f"model.{embedding}.weight"}


def shift_right(labels: Tensor, start: int, padding: int) -> Tensor:
    """The decoder's input for these labels, with `padding` for -100: `[batch, target_len]` in and out."""
    shifted = nn.functional.pad(labels[:, :-1], (1, 0), value=start)
    return shifted.masked_fill(shifted == IGNORE_INDEX, padding)


def encoder_decoder_cache(cache: Cache | None, create: bool) -> EncoderDecoderCache | None:
    """Add a cross-attention cache to the given cache. Without a cache, create both if `create` is set.

    Raises:
        ValueError: the cache is of another class than transformers' caches, such as a tuple.
    """
    check_cache(cache)
    if isinstance(cache, EncoderDecoderCache) or (cache is None and not create):
        return cache
    return EncoderDecoderCache(DynamicCache() if cache is None else cache, DynamicCache())


def set_layer_idx(layer: nn.Module, index: int) -> None:
    """Set the index of a layer's attentions in the cache. It changes if earlier layers are removed."""
    for name in ("self_attn", "encoder_attn"):
        attention: Any = getattr(layer, name, None)
        if getattr(attention, "layer_idx", index) != index:
            attention.layer_idx = index


def target_positions(
    decoder: RandomTransformerDecoder,
    tokens: Tensor,
    attention_mask: Tensor | None,
    cache: EncoderDecoderCache | None,
    position_ids: Tensor | None,
) -> tuple[Tensor, int | None]:
    """The positions of the tokens, `[length]` or `[batch or 1, length]`, and `position_limit` (see `embed`).

    They are `position_ids`, if given. Without a source, padding is not counted.

    Raises:
        ValueError: the mask of the target, whose length is `position_limit`, or `position_ids` are invalid.
    """
    batch, length = tokens.shape[:2]
    seen = 0 if cache is None else cache.get_seq_length()
    if cache is not None and isinstance(seen, Tensor):
        position_limit = cache.get_max_length()  # the capacity: a static cache stores its length on the device
    else:
        position_limit = seen + length
        check_padding_mask(f"{decoder.input_prefix}attention_mask", attention_mask, batch, position_limit)
    if position_ids is not None:
        check_shape("position_ids", position_ids, "batch", length)
        return position_ids, position_limit_of(position_ids)
    if not decoder.config.is_encoder_decoder and attention_mask is not None and len(attention_mask.shape) == 2:
        return (attention_mask.cumsum(dim=1, dtype=torch.long) - 1).clamp(min=0)[:, -length:], position_limit
    return seen + torch.arange(length, device=tokens.device), position_limit


def position_limit_of(position_ids: Tensor) -> int | None:
    """The `position_limit` of positions (see `embed`); `None` if it would have to be read on a GPU.

    Raises:
        ValueError: a position is negative.
    """
    if not position_ids.is_cpu or is_traced():
        return None
    if not position_ids.numel():  # an empty batch
        return 0
    lowest, highest = position_ids.aminmax()
    if lowest < 0:
        raise ValueError(f"position_ids must be at least 0, got {lowest}.")
    return int(highest) + 1


def cross_attention_mask(
    decoder: RandomTransformerDecoder, states: Tensor, source_states: Tensor, padding_mask: Tensor | None
) -> Tensor | None:
    """The mask of cross-attention for queries grouped by source, in the format of the attention implementation.

    Args:
        decoder: the decoder.
        states: the target's states, `[batch, target_len, d_model]`; `batch` is a multiple of `sources`.
        source_states: the encoded source, `[sources, source_len, d_model]`.
        padding_mask: 1 for source tokens, 0 for padding, `[sources, source_len]`; `None` without padding.

    Raises:
        ValueError: a shape is wrong, or the model has no cross-attention.
    """
    if not decoder.config.is_encoder_decoder:
        raise ValueError(
            f"encoder_hidden_states must be None for a model without cross-attention, got {list(source_states.shape)}."
        )
    check_shape("encoder_outputs", source_states, "batch", "length", decoder.config.d_model)
    sources, source_len, _ = source_states.shape
    check_target_rows(states.shape[0], sources)
    check_padding_mask("attention_mask", padding_mask, sources, source_len)
    return create_bidirectional_mask(
        decoder.config,
        group_by_source(states, sources),
        padding_mask,
        source_states,
        allow_is_bidirectional_skip=may_omit_mask(padding_mask),
    )


def fields_without_last_state(outputs: ModelOutput) -> dict[str, Any]:
    """The outputs of the base model that a model with a head also returns: the cache, hidden states, attentions."""
    return {name: value for name, value in outputs.items() if name != "last_hidden_state"}


# Checks of inputs


def checked_tokens(stack: RandomTransformerStack, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
    """The ids or the embeddings. Raises a ValueError if both or none are given, or the shape is wrong."""
    ids_name, embeds_name = f"{stack.input_prefix}input_ids", f"{stack.input_prefix}inputs_embeds"
    if inputs_embeds is not None and input_ids is None:
        check_shape(embeds_name, inputs_embeds, "batch", "length", stack.config.d_model)
        return inputs_embeds
    if input_ids is None or inputs_embeds is not None:
        provided = "neither" if input_ids is None else "both"
        raise ValueError(f"exactly one of {ids_name} and {embeds_name} must be given, got {provided}.")
    check_shape(ids_name, input_ids, "batch", "length")
    if input_ids.is_floating_point():
        raise ValueError(f"{ids_name} must be integers, got {input_ids.dtype}.")
    return input_ids


def check_shape(name: str, tensor: Tensor, *shape: int | str) -> None:
    """Raise a ValueError for another shape of a tensor; a name in `shape` allows any size, but no length of 0."""
    matches = tensor.dim() == len(shape)
    for size, expected in zip(tensor.shape, shape, strict=False):
        if isinstance(expected, int):
            matches = matches and size == expected
        elif expected != "batch":
            matches = matches and size > 0
    if not matches:
        raise ValueError(f"{name} must have shape [{', '.join(map(str, shape))}], got {list(tensor.shape)}.")


def check_padding_mask(name: str, mask: Tensor | None, batch: int, length: int) -> None:
    """Raise a ValueError if a padding mask does not match its tokens. Masks of four dimensions are not checked."""
    if mask is not None and len(mask.shape) != 4:  # a BlockMask of Flex attention has no `dim`
        check_shape(name, mask, batch, length)


def checked_loss(
    model: RandomTransformerPreTrainedModel, labels: Tensor, shape: Sequence[int], logits: Tensor, **kwargs: Any
) -> Tensor:
    """The loss. Raises a ValueError for labels of a wrong shape and, on a CPU, for invalid classes."""
    check_shape("labels", labels, *shape)
    config = model.config
    kwargs |= {"logits": logits, "labels": labels, "config": config, "vocab_size": config.vocab_size}
    try:
        # transformers' loss functions ignore other arguments. `ForSequenceClassificationLoss` has `pooled_logits`.
        return model.loss_function(pooled_logits=logits, **kwargs)
    except IndexError as error:
        raise ValueError(
            f"labels must be class ids or -100, got {labels.min().item()} to {labels.max().item()}: {error}"
        ) from error


# Task heads. Encoder and decoder have the same parameter names as in RandomTransformerForConditionalGeneration, so its
# checkpoints load into every head. Only the weights of the head are new.


class RandomTransformerEncoderModel(RandomTransformerBaseModel):
    """The encoder as a separate model (paper Figure 1 left)."""

    _tied_weights_keys = {"encoder.embed_tokens.weight": "shared.weight"}
    _keys_to_ignore_on_load_unexpected = [r"decoder\.", r"lm_head\."]

    def __init__(self, config: RandomTransformerConfig):
        config = config.copy_with(is_encoder_decoder=False, use_cache=False)
        super().__init__(config)
        self.encoder = RandomTransformerEncoder(config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> BaseModelOutput:
        """Encode texts; the arguments are those of `RandomTransformerModel.forward`."""
        return self.encoder(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, return_dict=True, **kwargs
        )


class RandomTransformerEncoderHead(RandomTransformerPreTrainedModel):
    """Base of the models with an output layer on the encoder's hidden states.

    Subclasses define `output_class` and `compute_logits`, or `forward` if they have other labels than `labels`.
    """

    _keys_to_ignore_on_load_unexpected = [r"decoder\.", r"lm_head\."]
    output_class: type[ModelOutput]
    # The output layer: hidden states `[batch, length, d_model]` and their padding mask → logits.
    compute_logits: Callable[[Tensor, Tensor | None], Tensor]

    def __init__(self, config: RandomTransformerConfig):
        config = config.copy_with(is_encoder_decoder=False, use_cache=False)
        super().__init__(config)
        self.model = RandomTransformerEncoderModel(config)
        self.dropout = nn.Dropout(config.dropout)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> ModelOutput:
        """Logits and, with `labels`, the loss. The class states the shapes of labels, `compute_logits` that of logits.

        The other arguments are those of `RandomTransformerModel.forward`.

        Raises:
            ValueError: an input or the labels have a wrong shape, or a label is not a class.
        """
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, return_dict=True, **kwargs
        )
        logits = self.compute_logits(outputs.last_hidden_state, attention_mask)
        loss = None
        if labels is not None:
            loss = checked_loss(self, labels, self.label_shape(logits, labels), logits, **kwargs)
        return self.output_class(loss=loss, logits=logits, **fields_without_last_state(outputs))

    def label_shape(self, logits: Tensor, labels: Tensor) -> Sequence[int]:
        """The shape that labels must have: one label per token, `[batch, length]`."""
        return logits.shape[:2]


class RandomTransformerForSequenceClassification(RandomTransformerEncoderHead):
    """Classification or regression of a text or a pair of texts, from the mean of its hidden states.

    Labels are classes, `[batch]`; zeros and ones, `[batch, num_labels]`, for several labels per text; or numbers.
    """

    output_class = SequenceClassifierOutput
    # The loss of numbers or of several labels is a mean over the batch in any case. The Trainer must divide it by
    # gradient_accumulation_steps.
    accepts_loss_kwargs = False

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config)
        self.score = nn.Linear(config.d_model, config.num_labels)  # a name that peft recognizes as a head
        self.post_init()

    def compute_logits(self, states: Tensor, padding_mask: Tensor | None) -> Tensor:
        """`[batch, num_labels]`."""
        return self.score(self.dropout(mean_of_tokens(states, padding_mask)))

    def label_shape(self, logits: Tensor, labels: Tensor) -> Sequence[int]:
        """One class per text or one number per logit. The loss would broadcast labels of other shapes."""
        are_numbers = labels.is_floating_point() or self.config.problem_type == "regression"
        is_per_logit = labels.dim() > 1 or (are_numbers and logits.shape[1] > 1)
        return logits.shape if is_per_logit else logits.shape[:1]


def mean_of_tokens(states: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Mean over the tokens without padding, summed in float32: `[batch, length, d_model]` → `[batch, d_model]`.

    Raises a ValueError for a mask of four dimensions, which does not tell which tokens are padding.
    """
    if padding_mask is None:
        return states.mean(dim=1)
    check_shape("attention_mask", padding_mask, *states.shape[:2])
    mask = padding_mask[..., None].float()
    return ((states * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)).to(states.dtype)


class RandomTransformerForTokenClassification(RandomTransformerEncoderHead):
    """Token classification. Labels are classes, `[batch, length]`, -100 for tokens to ignore."""

    output_class = TokenClassifierOutput

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config)
        self.score = nn.Linear(config.d_model, config.num_labels)
        self.post_init()

    def compute_logits(self, states: Tensor, padding_mask: Tensor | None) -> Tensor:
        """`[batch, length, num_labels]`."""
        return self.score(self.dropout(states))


class RandomTransformerForMaskedLM(RandomTransformerEncoderHead):
    """Masked language modeling. Labels are the original tokens, `[batch, length]`, -100 for tokens to ignore."""

    _tp_plan = {"lm_head": "colwise_gather_output"}
    _keys_to_ignore_on_load_unexpected = [r"decoder\."]
    output_class = MaskedLMOutput

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config)
        self._tied_weights_keys = output_layer_ties(config, "encoder")
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    def compute_logits(self, states: Tensor, padding_mask: Tensor | None) -> Tensor:
        """`[batch, length, vocab_size]`."""
        return self.lm_head(states)


class RandomTransformerForQuestionAnswering(RandomTransformerEncoderHead):
    """Extractive question answering: start and end of the answer in a text."""

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config)
        self.qa_outputs = nn.Linear(config.d_model, 2)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> QuestionAnsweringModelOutput:
        """Logits of start and end, `[batch, length]` each.

        The other arguments are those of `RandomTransformerModel.forward`.

        Args:
            start_positions: the answer's first token, `[batch]`.
            end_positions: the answer's last token, `[batch]`.

        Raises:
            ValueError: only one of the positions is given, or a shape is wrong.
        """
        outputs = self.model(
            input_ids=input_ids, attention_mask=attention_mask, inputs_embeds=inputs_embeds, return_dict=True, **kwargs
        )
        start_logits, end_logits = self.qa_outputs(self.dropout(outputs.last_hidden_state)).unbind(dim=-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            batch = len(start_logits)
            check_shape("start_positions", start_positions, batch)
            check_shape("end_positions", end_positions, batch)
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions, **kwargs)
        elif start_positions is not None or end_positions is not None:
            raise ValueError("start_positions and end_positions must be given together, got one of them.")
        return QuestionAnsweringModelOutput(
            loss=loss, start_logits=start_logits, end_logits=end_logits, **fields_without_last_state(outputs)
        )


class RandomTransformerDecoderModel(RandomTransformerBaseModel):
    """The decoder without cross-attention (paper Figure 1 right, without its middle sub-layer)."""

    _tied_weights_keys = {"decoder.embed_tokens.weight": "shared.weight"}
    _keys_to_ignore_on_load_unexpected = [r"encoder\.", r"encoder_attn", r"lm_head\."]

    def __init__(self, config: RandomTransformerConfig):
        super().__init__(config)
        self.decoder = RandomTransformerDecoder(config)
        self.post_init()

    @can_return_tuple
    def forward(self, input_ids: Tensor | None = None, **kwargs: Any) -> DecoderOutput:
        """Hidden states of the tokens, `[batch, length, d_model]`.

        The arguments are those of `RandomTransformerForCausalLM.forward`, without the labels.
        """
        outputs = self.decoder(input_ids=input_ids, return_dict=True, **kwargs)
        cache = cache_of(outputs)
        if cache is not None:
            outputs[CACHE_NAME] = cache.self_attention_cache  # the cross-attention cache is empty
        return outputs


class RandomTransformerForCausalLM(RandomTransformerPreTrainedModel, VerifiedGenerationMixin):
    """Causal language modeling with the decoder, without a source. Supports transformers' `generate()`."""

    _tp_plan = {"lm_head": "colwise_gather_output"}
    _keys_to_ignore_on_load_unexpected = [r"encoder\.", r"encoder_attn"]

    def __init__(self, config: RandomTransformerConfig):
        # num_hidden_layers, which caches read, is an alias of encoder_layers.
        config = config.copy_with(is_encoder_decoder=False, encoder_layers=config.decoder_layers)
        super().__init__(config)
        self._tied_weights_keys = output_layer_ties(config, "decoder")
        self.model = RandomTransformerDecoderModel(config)
        self.lm_head = nn.Linear(config.d_model, config.vocab_size, bias=config.lm_head_bias)
        self.post_init()

    @accepts_cache
    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        position_ids: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],  # type: ignore[misc]
    ) -> CausalLMOutputWithPast:
        """Logits of the next token, `[batch, length, vocab_size]`.

        Args:
            attention_mask: 1 for tokens, 0 for padding, on either side, `[batch, seen_len + length]`.
            labels: the input ids, `[batch, length]`, -100 for tokens to ignore. They are shifted internally.
            logits_to_keep: compute logits for this number of last positions only (0: all), or for these positions.
            position_ids: the tokens' positions, `[batch or 1, length]`; counted without the padding when `None`.
                Without `attention_mask` and `cache`, positions that restart begin a new packed text, which
                cannot attend to earlier texts in its row. The returned cache does not separate texts.

        The other arguments are those of `RandomTransformerModel.forward`.
        """
        outputs = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            **named_cache(cache),
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            position_ids=position_ids,
            return_dict=True,
            **kwargs,
        )
        logits = self.lm_head(kept_positions(outputs.last_hidden_state, logits_to_keep))
        loss = None if labels is None else checked_loss(self, labels, logits.shape[:2], logits, **kwargs)
        return CausalLMOutputWithPast(
            loss=loss,
            logits=logits,
            **named_cache(cache_of(outputs)),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


# With label_smoothing_factor, transformers' Trainer shifts the labels of the classes in this table only.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES["random_transformer"] = "RandomTransformerForCausalLM"
