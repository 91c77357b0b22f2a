"""The configuration of the Random Transformer: one dataclass field per option, and the paper's models as presets.

"The paper" is Vaswani et al. 2017, "Attention Is All You Need" (arXiv:1706.03762). "The blog post" is Omar Sanseviero's
"The Random Transformer", which computes the same network by hand in four dimensions.

`save_pretrained` copies this file and every file that an import line in its text names. `from_pretrained` with remote
code searches the text in the same way, and names the loaded module by a digest of these files. transformers selects a
model's code by the class of its configuration. The lines below name all other files of the model. Therefore all files
are copied without being imported, and folders of one name with different code get different classes:

    from .modeling_random_transformer import RandomTransformerModel
    from .pipeline_random_transformer import Seq2SeqPipeline
    from .tokenization_random_transformer import RandomTransformerTokenizer
"""

from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from dataclasses import fields
from difflib import get_close_matches
from os import PathLike
from typing import Any, TypeGuard

import torch
from transformers import GenerationConfig, PretrainedConfig
from transformers.activations import ACT2FN
from transformers.utils import TRANSFORMERS_DYNAMIC_MODULE_NAME

from .versions_random_transformer import CACHE_NAME

# Auto class → model class. The package registers them. The auto_map of saved folders refers to them.
MODEL_CLASSES = {
    "AutoModel": "RandomTransformerModel",
    "AutoModelForSeq2SeqLM": "RandomTransformerForConditionalGeneration",
    "AutoModelForTextEncoding": "RandomTransformerEncoderModel",
    "AutoModelForSequenceClassification": "RandomTransformerForSequenceClassification",
    "AutoModelForTokenClassification": "RandomTransformerForTokenClassification",
    "AutoModelForQuestionAnswering": "RandomTransformerForQuestionAnswering",
    "AutoModelForMaskedLM": "RandomTransformerForMaskedLM",
    "AutoModelForCausalLM": "RandomTransformerForCausalLM",
}

MIN_SIMILARITY = 0.72  # from 0 to 1; a suggestion that is less similar to a misspelled name would mislead
IMPLEMENTATIONS = ("attn_implementation", "experts_implementation")  # fields of transformers
# The value of custom_pipelines in saved folders.
PIPELINES = {
    "seq2seq": {"impl": "pipeline_random_transformer.Seq2SeqPipeline", "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
}


class RandomTransformerConfig(PretrainedConfig):
    """All options of a Random Transformer. The defaults are the paper's base model, with `attention_bias`.

    Args:
        vocab_size: size of the vocabulary that source and target share (paper 5.1).
        d_model: width of the residual stream (paper 3.1).
        encoder_layers: number of encoder layers.
        decoder_layers: number of decoder layers.
        num_heads: attention heads in every attention layer (paper 3.2.2).
        d_k: width of one head's queries and keys; `d_model // num_heads` when `None`.
        d_v: width of one head's values; `d_k` when `None`.
        d_ff: inner width of the feed-forward network (paper 3.3).
        activation_function: the feed-forward network's nonlinearity, any name in transformers' `ACT2FN`.
        dropout: rate on each sub-layer's output and on the sum of embedding and position (paper 5.4).
        attention_dropout: rate on the attention weights.
        activation_dropout: rate on the feed-forward network's inner activations.
        norm_order: `"post"` is LayerNorm(x + sublayer(x)), the paper; `"pre"` is x + sublayer(LayerNorm(x)).
        final_layer_norm: an additional layer norm at the end of encoder and decoder; `norm_order == "pre"` when `None`.
        layer_norm_eps: the constant added to the variance.
        attention_bias: biases in the four attention projections. The paper has none (3.2.2), most implementations do.
        attention_scale: the factor on Q·K; `d_k ** -0.5` when `None` (paper 3.2.1).
        position_embedding: `"sinusoidal"` (paper 3.5), `"learned"` or `"none"`.
        sinusoid_layout: `"interleaved"` sines and cosines (paper) or `"concatenated"`, all sines before all cosines
            (tensor2tensor, Marian).
        position_offset: index of the first position (fairseq counts from `padding_idx + 1`).
        max_position_embeddings: number of learned positions. Sinusoids are computed for any length;
            for them this is the length of the precomputed table.
        scale_embedding: multiply token embeddings by `sqrt(d_model)` (paper 3.4).
        share_embeddings: encoder and decoder look up the same embedding matrix.
        tie_word_embeddings: the output layer is the decoder's embedding matrix, transposed (paper 3.4).
        lm_head_bias: a bias on the logits.
        pad_token_id: the tokenizer's `<pad>`.
        bos_token_id: the tokenizer's `<s>`.
        eos_token_id: the tokenizer's `</s>`.
        decoder_start_token_id: the first token of every target (the blog post's SOS).
        use_cache: return the keys and values of the decoder for the next step of generation.

    The aliases in `attribute_map`, such as `hidden_size` for `d_model`, may be used instead of a field's name.

    Unknown fields of saved configurations become attributes. Unknown arguments are errors, since they are probably
    misspelled; `attributes={"name": value}` sets other attributes.

    Raises:
        ValueError: a value is not allowed, or a field and its alias have different values; the message names the field,
            the value and what is allowed. Or an argument is not a field; the message has the name of a similar one.
    """

    model_type = "random_transformer"
    keys_to_ignore_at_inference = [CACHE_NAME]
    # Standard names in transformers, which caches, adapters and exporters use.
    attribute_map = {
        "hidden_size": "d_model",
        "num_attention_heads": "num_heads",
        "num_hidden_layers": "encoder_layers",
        "head_dim": "d_k",
    }

    # Tensor parallelism: heads and inner features are split by column, the projections back to the residual stream by
    # row, the vocabulary by entry.
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
    # One FSDP2 unit per layer. The embedding remains in the root unit: encoder, decoder and output layer use it.
    base_model_fsdp_plan = {"encoder.layers.*": "free_full_weight", "decoder.layers.*": "free_full_weight"}

    vocab_size: int = 37000
    d_model: int = 512
    encoder_layers: int = 6
    decoder_layers: int = 6
    num_heads: int = 8
    # None selects a derived value. After construction, these four fields have the annotated types.
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

    def __new__(cls, *_: Any, **values: Any) -> "RandomTransformerConfig":
        """Check that fields equal their aliases. `__post_init__` cannot distinguish defaults from explicit values."""
        cls._without_aliases(values)
        return super().__new__(cls)

    def __post_init__(
        self, custom_pipelines: dict[str, Any] | None = None, attributes: dict[str, Any] | None = None, **kwargs: Any
    ) -> None:
        for alias, name in self.attribute_map.items():
            if alias in kwargs:  # set before validation and before other fields are derived from it
                setattr(self, name, kwargs.pop(alias))
        for name in kwargs:
            if name not in NAMES_OF_TRANSFORMERS and not name.startswith("_"):
                similar = did_you_mean(name, [*self.attribute_map, *RandomTransformerConfig.__annotations__])
                raise ValueError(f"arguments must be fields of the configuration, got {name!r}.{similar}")
        kwargs |= attributes or {}
        check_fields({"custom_pipelines": custom_pipelines, **kwargs})
        if custom_pipelines and not __name__.startswith(TRANSFORMERS_DYNAMIC_MODULE_NAME):
            # The package registers these pipelines, so a folder's code is not needed for them.
            custom_pipelines = {k: v for k, v in custom_pipelines.items() if k not in PIPELINES}
        if custom_pipelines:
            kwargs["custom_pipelines"] = custom_pipelines
        check_fields(vars(self))
        for name, derive in DERIVED_FIELDS.items():
            if getattr(self, name) is None:
                setattr(self, name, derive(self))
        self._check_combinations()
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> "RandomTransformerConfig":
        """Create a configuration from a dictionary; keyword arguments override it. `from_pretrained` calls this method.

        Overrides may use aliases. They are validated together with the other values. A field that has its derived value
        is derived again. A file does not select the attention implementation, because its name may refer to code on
        the Hub. Only a keyword argument does.
        """
        known = {*(entry.name for entry in fields(cls)), *cls.attribute_map, *NAMES_OF_TRANSFORMERS}
        values: dict[str, Any] = {}
        attributes: dict[str, Any] = {}
        for name, value in config_dict.items():
            if name.lstrip("_") not in IMPLEMENTATIONS:
                target = values if name in known else attributes
                target[name] = value
        kwargs = cls._without_aliases(kwargs)
        overrides = {name: kwargs.pop(name) for name in RandomTransformerConfig.__annotations__ if name in kwargs}
        if overrides:
            values = cls._without_aliases(values)
            saved = cls(**values)
            for name, derive in DERIVED_FIELDS.items():
                if getattr(saved, name) == derive(saved):
                    values.pop(name, None)
        return super().from_dict({**values, **overrides, "attributes": attributes}, **kwargs)

    def validate(self) -> None:
        """Validate all fields. transformers calls this before it saves a configuration.

        Raises:
            ValueError: a field was set to a value that is not allowed.
        """
        check_fields(vars(self))
        self._check_combinations()

    def save_pretrained(self, save_directory: str | PathLike, **kwargs: Any) -> None:
        """Save the configuration, with the full auto_map if the model's code is saved too."""
        if any(name.startswith("AutoModel") for name in getattr(self, "auto_map", None) or {}):
            self.auto_map.update({auto: f"modeling_random_transformer.{name}" for auto, name in MODEL_CLASSES.items()})
            if "RandomTransformerForConditionalGeneration" in (self.architectures or []):
                self.custom_pipelines = {**(getattr(self, "custom_pipelines", None) or {}), **PIPELINES}
        super().save_pretrained(save_directory, **kwargs)

    def copy_with(self, **values: Any) -> "RandomTransformerConfig":
        """A copy with these values, or `self` if nothing changes, so that all modules of a model share one object."""
        if all(getattr(self, name) == value for name, value in values.items()):
            return self
        config = deepcopy(self)
        config.update(values)
        return config

    @classmethod
    def from_preset(cls, name: str, **overrides: Any) -> "RandomTransformerConfig":
        """Create a named configuration. Any field can be overridden.

        Args:
            name: `"base"`, `"big"`, another row of the paper's Table 3 (`"A-1"` … `"E"`), `"tiny"`, `"iwslt"`,
                `"6-2"`, `"12-1"` (encoder and decoder layers of the base model) or `"blog"`.
            **overrides: fields that differ from the preset.

        Raises:
            ValueError: the preset or a field does not exist.
        """
        if name not in PRESETS:
            raise ValueError(f"preset must be one of {quoted_names(PRESETS)}, got {name!r}.")
        return cls(**{**PRESETS[name], **cls._without_aliases(overrides)})

    @classmethod
    def _without_aliases(cls, values: dict[str, Any]) -> dict[str, Any]:
        """The same values with aliases replaced by field names."""
        renamed: dict[str, Any] = {}
        for alias, value in values.items():
            name = cls.attribute_map.get(alias, alias)
            if name in renamed and renamed[name] != value:
                raise ValueError(f"{name} and its alias must have one value, got {renamed[name]!r} and {value!r}.")
            renamed[name] = value
        return renamed

    def _check_combinations(self) -> None:
        if self.position_embedding == "sinusoidal" and self.d_model % 2:
            raise ValueError(f"d_model must be even with position_embedding='sinusoidal', got {self.d_model}.")
        for field in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
            value = getattr(self, field)
            ids = value if field == "eos_token_id" and isinstance(value, list | tuple) and value else [value]
            for token_id in ids:
                if token_id is not None and not (is_int(token_id) and 0 <= token_id < self.vocab_size):
                    raise ValueError(f"{field} must be None or an id, 0 to {self.vocab_size - 1}, got {value!r}.")


def did_you_mean(name: str, names: Iterable[str], prefix: str = "") -> str:
    """A question after an error about an unknown name, if one of these names is similar; otherwise `""`."""
    similar = get_close_matches(name, names, cutoff=MIN_SIMILARITY)  # the most similar first
    return f" Did you mean {prefix}{similar[0]}?" if similar else ""


def width_of_heads(config: RandomTransformerConfig) -> int:
    if config.d_model % config.num_heads:
        raise ValueError(
            f"d_model must be a multiple of num_heads={config.num_heads} unless d_k is given, got {config.d_model}."
        )
    return config.d_model // config.num_heads


# Derivations of the fields that may be None, in this order.
DERIVED_FIELDS = {
    "d_k": width_of_heads,
    "d_v": lambda config: config.d_k,
    "attention_scale": lambda config: config.d_k**-0.5,
    "final_layer_norm": lambda config: config.norm_order == "pre",
}


# The strict dataclasses of transformers 5.17 and 5.23 do not replace these checks: their exception is not a ValueError,
# its message has several lines, and they check types but not ranges.
Rule = tuple[str, Callable[[Any], bool]]  # the allowed values in words, and a predicate


def quoted_names(names: Iterable[str]) -> str:
    return ", ".join(repr(name) for name in names)


def integer(lowest: int, highest: int) -> Rule:
    return f"an integer from {lowest} to {highest}", lambda value: is_int(value) and lowest <= value <= highest


def one_of_names(names: Iterable[str]) -> Rule:
    return f"one of {quoted_names(names)}", lambda value: isinstance(value, str) and value in names


def instance(description: str, *classes: type) -> Rule:
    return description, lambda value: isinstance(value, classes)


def optional(rule: Rule) -> Rule:
    description, is_valid = rule
    return f"None or {description}", lambda value: value is None or is_valid(value)


def is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_floating_dtype(dtype: Any) -> bool:
    dtype = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point


def are_labels(value: Any) -> bool:
    """Whether this maps ids, which are strings in JSON, to labels."""
    return isinstance(value, dict) and all(str(key).isdecimal() and isinstance(value[key], str) for key in value)


def are_strings(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(name, str) for name in value)


# Limits far above any real model, so that a corrupted size cannot cause a huge allocation.
MAX_SIZE, MAX_LAYERS = 2**24, 2**12
SIZE = integer(1, MAX_SIZE)
RATE: Rule = ("a rate of at least 0 and below 1", lambda value: is_number(value) and 0 <= value < 1)
POSITIVE: Rule = ("a positive number", lambda value: is_number(value) and 0 < value < float("inf"))
FLAG = instance("True or False", bool)
RULES: dict[str, Rule] = {
    **dict.fromkeys(("vocab_size", "d_model", "num_heads", "d_ff", "max_position_embeddings"), SIZE),
    **dict.fromkeys(("encoder_layers", "decoder_layers"), integer(1, MAX_LAYERS)),
    **dict.fromkeys(("d_k", "d_v", "num_labels"), optional(SIZE)),
    **dict.fromkeys(("dropout", "attention_dropout", "activation_dropout"), RATE),
    **dict.fromkeys(("attention_bias", "scale_embedding", "share_embeddings", "tie_word_embeddings"), FLAG),
    **dict.fromkeys(("lm_head_bias", "use_cache", "is_encoder_decoder", "is_decoder"), FLAG),
    "activation_function": one_of_names(ACT2FN),
    "norm_order": one_of_names(("post", "pre")),
    "final_layer_norm": optional(FLAG),
    "layer_norm_eps": POSITIVE,
    "attention_scale": optional(POSITIVE),
    "position_embedding": one_of_names(("sinusoidal", "learned", "none")),
    "sinusoid_layout": one_of_names(("interleaved", "concatenated")),
    "position_offset": integer(0, MAX_SIZE),
    # Fields and arguments of transformers for which a wrong value would only fail later.
    **dict.fromkeys(("output_attentions", "output_hidden_states", "return_dict"), optional(FLAG)),
    **dict.fromkeys(("dtype", "torch_dtype"), optional(("a floating-point dtype", is_floating_dtype))),
    "custom_pipelines": optional(instance("a dictionary", dict)),
    "architectures": optional(("a list of strings", are_strings)),
    "attn_implementation": optional(instance("a string or a dictionary", str, dict)),
    "id2label": optional(("a dictionary of labels by id", are_labels)),
    "layer_types": optional(
        ("a list of 'full_attention'", lambda value: are_strings(value) and set(value) <= {"full_attention"})
    ),
}


# Arguments of all configurations of transformers, and settings of generation, which old saved configurations contain.
NAMES_OF_TRANSFORMERS = {
    *RULES,
    *(entry.name for entry in fields(PretrainedConfig)),
    *(name for name, value in vars(PretrainedConfig).items() if isinstance(value, property)),
    *vars(GenerationConfig()),
    *("auto_map", "experts_implementation", "model_type", "per_layer_config", "quantization_config"),
}


def check_fields(values: Mapping[str, Any]) -> None:
    for name, (description, is_valid) in RULES.items():
        if name in values and not is_valid(values[name]):
            raise ValueError(f"{name} must be {description}, got {values[name]!r}.")


# Each of the rows A to E varies one hyperparameter of the base model. Row B changes d_k only. d_v remains 64, as the
# paper's parameter counts show.
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
    "tiny": {"encoder_layers": 4, "decoder_layers": 4, "d_model": 128, "d_ff": 256, "num_heads": 4, "dropout": 0.3},
    # fairseq's recipe for IWSLT'14.
    "iwslt": {"d_ff": 1024, "num_heads": 4, "dropout": 0.3},
    # Deep encoder, shallow decoder (Kasai et al. 2021), because the decoder takes most of the translation time. Twelve
    # layers train reliably in pre-norm order only.
    "6-2": {"decoder_layers": 2},
    "12-1": {"encoder_layers": 12, "decoder_layers": 1, "norm_order": "pre"},
    # The blog post. Its ten words have no padding token, SOS is 6 and EOS is 5, and embeddings are not scaled.
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
