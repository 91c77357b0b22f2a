"""The configuration of the Random Transformer: one dataclass field per choice, and the paper's models as presets.

"The paper" is Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762); "the seed" is Omar Sanseviero's
post "The Random Transformer", which runs the same network by hand in four dimensions.
"""

from collections.abc import Iterable
from copy import deepcopy
from os import PathLike
from typing import TYPE_CHECKING, Any

from transformers import PretrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

if TYPE_CHECKING:  # never run: the library copies the files that it finds imported, and these are to travel along
    from .heads_random_transformer import RandomTransformerForCausalLM  # noqa: F401
    from .pipeline_random_transformer import Seq2SeqPipeline  # noqa: F401

# What each of transformers' Auto classes makes of a Random Transformer where only the saved code is at hand.
MODEL_CLASSES = {
    "AutoModel": "modeling_random_transformer.RandomTransformerModel",
    "AutoModelForSeq2SeqLM": "modeling_random_transformer.RandomTransformerForConditionalGeneration",
    "AutoModelForTextEncoding": "heads_random_transformer.RandomTransformerEncoderModel",
    "AutoModelForSequenceClassification": "heads_random_transformer.RandomTransformerForSequenceClassification",
    "AutoModelForTokenClassification": "heads_random_transformer.RandomTransformerForTokenClassification",
    "AutoModelForQuestionAnswering": "heads_random_transformer.RandomTransformerForQuestionAnswering",
    "AutoModelForMaskedLM": "heads_random_transformer.RandomTransformerForMaskedLM",
    "AutoModelForCausalLM": "heads_random_transformer.RandomTransformerForCausalLM",
}

# … and what `pipeline("seq2seq", …)` makes of it there.
PIPELINES = {
    "seq2seq": {
        "impl": "pipeline_random_transformer.Seq2SeqPipeline",
        "pt": ["AutoModelForSeq2SeqLM"],
        "type": "text",
    }
}


class RandomTransformerConfig(PretrainedConfig):
    """Every choice that defines a Random Transformer. The defaults are the paper's base model.

    Args:
        vocab_size: entries of the one vocabulary that source and target share (paper 5.1).
        d_model: width of the residual stream (paper 3.1).
        encoder_layers: number of encoder blocks.
        decoder_layers: number of decoder blocks.
        num_heads: attention heads in every attention layer (paper 3.2.2).
        d_k: width of one head's queries and keys; `d_model // num_heads` when `None`.
        d_v: width of one head's values; `d_k` when `None`.
        d_ff: inner width of the feed-forward network (paper 3.3).
        activation_function: the feed-forward network's nonlinearity, any name in transformers' `ACT2FN`.
        dropout: rate on each sub-layer's output and on the sum of embedding and position (paper 5.4).
        attention_dropout: rate on the attention weights.
        activation_dropout: rate on the feed-forward network's inner activations.
        norm_order: `"post"` is LayerNorm(x + sublayer(x)), the paper; `"pre"` is x + sublayer(LayerNorm(x)).
        final_layer_norm: one more layer norm at the end of each stack; `norm_order == "pre"` when `None`.
        layer_norm_eps: the constant added to the variance.
        attention_bias: biases in the four attention projections.
        attention_scale: the factor on Q·K; `d_k ** -0.5` when `None` (paper 3.2.1).
        position_embedding: `"sinusoidal"` (paper 3.5), `"learned"` or `"none"`.
        sinusoid_layout: `"interleaved"` sines and cosines (paper) or `"concatenated"`, all sines before all cosines
            (tensor2tensor, Marian).
        position_offset: index of the first position (fairseq counts from `padding_idx + 1`).
        max_position_embeddings: how many positions a learned table holds. Sinusoids are made for any length; for
            them it is only the length of the table that is prepared in advance.
        scale_embedding: multiply token embeddings by `sqrt(d_model)` (paper 3.4).
        share_embeddings: encoder and decoder look up the same embedding matrix.
        tie_word_embeddings: the output layer is the decoder's embedding matrix, transposed (paper 3.4).
        lm_head_bias: a bias on the logits.
        pad_token_id: the tokenizer's `<pad>`.
        bos_token_id: the tokenizer's `<s>`.
        eos_token_id: the tokenizer's `</s>`.
        decoder_start_token_id: the token that every target starts from (the seed's SOS).
        use_cache: return the keys and values of the decoder for the next step of generation.

    Raises:
        ValueError: a value is not allowed; the message names the field, the value and what is allowed.
    """

    model_type = "random_transformer"
    keys_to_ignore_at_inference = ["past_key_values"]
    # The ecosystem's names for the same numbers, so that caches, adapters and exporters find them.
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "encoder_layers",
        "head_dim": "d_k",
    }

    # How each module is split over the devices of a tensor-parallel group: heads and inner features by column, the
    # projections back to the residual stream by row, the vocabulary by entry.
    base_model_tp_plan = {
        "shared": "embedding_rowwise",
        "encoder.embed_tokens": "embedding_rowwise",
        "decoder.embed_tokens": "embedding_rowwise",
        "encoder.layers.*.self_attn.q_proj": "colwise",
        "encoder.layers.*.self_attn.k_proj": "colwise",
        "encoder.layers.*.self_attn.v_proj": "colwise",
        "encoder.layers.*.self_attn.out_proj": "rowwise",
        "encoder.layers.*.fc1": "colwise",
        "encoder.layers.*.fc2": "rowwise",
        "decoder.layers.*.self_attn.q_proj": "colwise",
        "decoder.layers.*.self_attn.k_proj": "colwise",
        "decoder.layers.*.self_attn.v_proj": "colwise",
        "decoder.layers.*.self_attn.out_proj": "rowwise",
        "decoder.layers.*.encoder_attn.q_proj": "colwise",
        "decoder.layers.*.encoder_attn.k_proj": "colwise",
        "decoder.layers.*.encoder_attn.v_proj": "colwise",
        "decoder.layers.*.encoder_attn.out_proj": "rowwise",
        "decoder.layers.*.fc1": "colwise",
        "decoder.layers.*.fc2": "rowwise",
    }
    # One FSDP2 unit per block. The embedding stays with the root unit: both stacks and the output layer use it.
    base_model_fsdp_plan = {
        "encoder.layers.*": "free_full_weight",
        "decoder.layers.*": "free_full_weight",
    }

    vocab_size: int = 37000
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    num_heads: int = 8
    # None stands for a derived value; after construction these four are what their types say.
    d_k: int = None  # type: ignore[assignment]
    d_v: int = None  # type: ignore[assignment]
    d_ff: int = 2048
    activation_function: str = "relu"
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    norm_order: str = "post"
    final_layer_norm: bool = None  # type: ignore[assignment]
    layer_norm_eps: float = 1e-6
    attention_bias: bool = True
    attention_scale: float = None  # type: ignore[assignment]
    position_embedding: str = "sinusoidal"
    sinusoid_layout: str = "interleaved"
    position_offset: int = 0
    max_position_embeddings: int = 1024
    scale_embedding: bool = True
    share_embeddings: bool = True
    tie_word_embeddings: bool = True
    lm_head_bias: bool = False
    pad_token_id: int | None = 0
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    decoder_start_token_id: int | None = 1
    use_cache: bool = True
    is_encoder_decoder: bool = True
    is_decoder: bool = False

    def __post_init__(self, custom_pipelines: dict[str, Any] | None = None, **kwargs: Any) -> None:
        if not __name__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME):
            # Importing the package registers these: nobody has to trust a folder's code for them.
            custom_pipelines = {k: v for k, v in (custom_pipelines or {}).items() if k not in PIPELINES}
        if custom_pipelines:
            kwargs["custom_pipelines"] = custom_pipelines
        self._check_fields()
        self._fill_derived_fields()
        self._check_combinations()
        super().__post_init__(**kwargs)

    def save_pretrained(self, save_directory: str | PathLike, **kwargs: Any) -> None:
        """As always. Where a model's code goes along, all its classes are named, so that each Auto class loads it."""
        if any(name.startswith("AutoModel") for name in getattr(self, "auto_map", None) or {}):
            self.auto_map.update(MODEL_CLASSES)
            if "RandomTransformerForConditionalGeneration" in (self.architectures or []):
                self.custom_pipelines = {**(getattr(self, "custom_pipelines", None) or {}), **PIPELINES}
        super().save_pretrained(save_directory, **kwargs)

    def changed(self, **values: Any) -> "RandomTransformerConfig":
        """A copy with these values; itself where it has them, so that a head and the stack in it share one."""
        if all(getattr(self, name) == value for name, value in values.items()):
            return self
        config = deepcopy(self)
        for name, value in values.items():
            setattr(config, name, value)
        return config

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "RandomTransformerConfig":
        """A named configuration, with any field overridden.

        Args:
            name: `"base"`, `"big"`, another row of the paper's Table 3 (`"A-1"` … `"E"`), `"tiny"`, `"iwslt"` or
                `"blog"`.
            **overrides: fields that differ from the preset.

        Raises:
            ValueError: there is no such preset.
        """
        if name not in PRESETS:
            raise ValueError(f"preset must be one of {_listed(PRESETS)}, got {name!r}.")
        return cls(**{**PRESETS[name], **overrides})

    def _check_fields(self) -> None:
        for field, allowed in _ALLOWED.items():
            value = getattr(self, field)
            if not _CHECKS[allowed](value):
                raise ValueError(f"{field} must be {allowed}, got {value!r}.")
        for field, choices in _CHOICES.items():
            value = getattr(self, field)
            if not (isinstance(value, str) and value in choices):
                raise ValueError(f"{field} must be one of {_listed(choices)}, got {value!r}.")

    def _fill_derived_fields(self) -> None:
        if self.d_k is None:
            if self.d_model % self.num_heads:
                raise ValueError(
                    f"d_model must be a multiple of num_heads={self.num_heads} unless d_k is given, got {self.d_model}."
                )
            self.d_k = self.d_model // self.num_heads
        if self.d_v is None:
            self.d_v = self.d_k
        if self.attention_scale is None:
            self.attention_scale = self.d_k**-0.5
        if self.final_layer_norm is None:
            self.final_layer_norm = self.norm_order == "pre"

    def _check_combinations(self) -> None:
        if self.position_embedding == "sinusoidal" and self.d_model % 2:
            raise ValueError(
                "d_model must be even with position_embedding='sinusoidal' (a sine and a cosine per frequency), "
                f"got {self.d_model}."
            )
        for field in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(self, field)
            for token_id in value if isinstance(value, list | tuple) else [value]:
                if token_id is not None and not (_is_int(token_id) and 0 <= token_id < self.vocab_size):
                    raise ValueError(
                        f"{field} must be None or an id in the vocabulary, 0 to {self.vocab_size - 1}, got {value!r}."
                    )


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


_CHECKS = {
    "a positive integer": lambda v: _is_int(v) and v > 0,
    "None or a positive integer": lambda v: v is None or (_is_int(v) and v > 0),
    "an integer of at least 0": lambda v: _is_int(v) and v >= 0,
    "a rate of at least 0 and below 1": lambda v: _is_number(v) and 0 <= v < 1,
    "a positive number": lambda v: _is_number(v) and 0 < v < float("inf"),
    "None or a positive number": lambda v: v is None or (_is_number(v) and 0 < v < float("inf")),
    "True or False": lambda v: isinstance(v, bool),
    "None, True or False": lambda v: v is None or isinstance(v, bool),
}

_ALLOWED = {
    "vocab_size": "a positive integer",
    "d_model": "a positive integer",
    "encoder_layers": "a positive integer",
    "decoder_layers": "a positive integer",
    "num_heads": "a positive integer",
    "d_k": "None or a positive integer",
    "d_v": "None or a positive integer",
    "d_ff": "a positive integer",
    "dropout": "a rate of at least 0 and below 1",
    "attention_dropout": "a rate of at least 0 and below 1",
    "activation_dropout": "a rate of at least 0 and below 1",
    "final_layer_norm": "None, True or False",
    "layer_norm_eps": "a positive number",
    "attention_bias": "True or False",
    "attention_scale": "None or a positive number",
    "position_offset": "an integer of at least 0",
    "max_position_embeddings": "a positive integer",
    "scale_embedding": "True or False",
    "share_embeddings": "True or False",
    "tie_word_embeddings": "True or False",
    "lm_head_bias": "True or False",
    "use_cache": "True or False",
}

_CHOICES = {
    "activation_function": ACT2FN,
    "norm_order": ("post", "pre"),
    "position_embedding": ("sinusoidal", "learned", "none"),
    "sinusoid_layout": ("interleaved", "concatenated"),
}

# Rows A to E vary one thing of the base model each. Row B narrows the keys and leaves the values at 64, as the paper's
# parameter counts show.
PRESETS: dict[str, dict[str, Any]] = {
    "base": {},
    "A-1": {"num_heads": 1, "d_k": 512, "d_v": 512},
    "A-4": {"num_heads": 4, "d_k": 128, "d_v": 128},
    "A-16": {"num_heads": 16, "d_k": 32, "d_v": 32},
    "A-32": {"num_heads": 32, "d_k": 16, "d_v": 16},
    "B-16": {"d_k": 16, "d_v": 64},
    "B-32": {"d_k": 32, "d_v": 64},
    "C-2": {"encoder_layers": 2, "decoder_layers": 2},
    "C-4": {"encoder_layers": 4, "decoder_layers": 4},
    "C-8": {"encoder_layers": 8, "decoder_layers": 8},
    "C-d256": {"d_model": 256, "d_k": 32, "d_v": 32},
    "C-d1024": {"d_model": 1024, "d_k": 128, "d_v": 128},
    "C-ff1024": {"d_ff": 1024},
    "C-ff4096": {"d_ff": 4096},
    "D-0.0": {"dropout": 0.0},
    "D-0.2": {"dropout": 0.2},
    "E": {"position_embedding": "learned"},
    "big": {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3},
    # Wu et al. 2021, "Good for Misconceived Reasons", Transformer-Tiny for Multi30k.
    "tiny": {
        "encoder_layers": 4,
        "decoder_layers": 4,
        "d_model": 128,
        "d_ff": 256,
        "num_heads": 4,
        "dropout": 0.3,
    },
    # fairseq's recipe for IWSLT'14.
    "iwslt": {"d_ff": 1024, "num_heads": 4, "dropout": 0.3},
    # The seed. Its ten words have no padding, end with EOS = 5 and start with SOS = 6, and it adds positions to
    # embeddings that it does not scale.
    "blog": {
        "vocab_size": 10,
        "d_model": 4,
        "num_heads": 2,
        "d_k": 3,
        "d_v": 3,
        "d_ff": 8,
        "dropout": 0.0,
        "attention_bias": False,
        "scale_embedding": False,
        "tie_word_embeddings": False,
        "lm_head_bias": True,
        "pad_token_id": 5,
        "bos_token_id": 6,
        "eos_token_id": 5,
        "decoder_start_token_id": 6,
    },
}
