"""The options of a fairseq checkpoint, in any of the three layouts that fairseq has used."""

from argparse import Namespace
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..utils.errors import format_value, printable
from .safe_loading import is_state_dict

DEFAULT_POSITIONS = 1024  # fairseq's default of max_source_positions and max_target_positions
MAX_POSITIONS = 2**20  # limit for a computed table
PAD, EOS, UNK = 1, 2, 3  # fairseq's <pad>, </s> and <unk>; <s> is 0
# fairseq's architectures with the same computation. Others, such as transformer_unidirectional, may have equal weights.
ARCHITECTURES = (
    "transformer",
    "transformer_tiny",
    "transformer_iwslt_de_en",
    "transformer_wmt_en_de",
    "transformer_wmt_en_de_big",
    "transformer_wmt_en_de_big_t2t",
    "transformer_vaswani_wmt_en_de_big",
    "transformer_vaswani_wmt_en_fr_big",
    "transformer_align",
    "transformer_wmt_en_de_big_align",
)
NESTED = ("encoder", "decoder", "quant_noise")
# fairseq's activation names and transformers'.
ACTIVATIONS = {
    "relu": "relu",
    "relu_squared": "relu2",
    "gelu": "gelu",
    "gelu_accurate": "gelu_new",
    "gelu_fast": "gelu_new",
    "swish": "silu",
    "tanh": "tanh",
    "linear": "linear",
}
# Options that change the computation and have no counterpart in this model; all are off by default.
STACK_OPTIONS = ("add_adapters", "recurrent_stacking", "factorized_embed_dim", "layers_to_keep", "xformers_att_config")
UNSUPPORTED = (
    "layernorm_embedding",
    "adaptive_input",
    "adaptive_softmax_cutoff",
    "character_embeddings",
    "char_inputs",
    "cross_self_attention",
    "no_cross_attention",
    "no_decoder_final_norm",
    "quant_noise_pq",
    "quant_noise_scalar",
    "use_factorized_embedding",
    "merge_src_tgt_embed",
    "base_layers",
    "scale_attn",
    "scale_heads",
    "scale_fc",
    "scale_resids",
    *(f"{stack}_{name}" for stack in ("encoder", "decoder") for name in STACK_OPTIONS),
)
EQUAL_IN_STACKS = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before")


@dataclass(frozen=True)
class FairseqOptions:
    """The options that a converted model depends on. Pairs contain the values of the encoder and the decoder."""

    num_heads: int | None
    pre_norm: bool
    activation: str
    scale_embedding: bool
    share_all_embeddings: bool
    tie_output: bool
    positions: bool
    learned_positions: tuple[bool, bool]
    max_positions: tuple[int, int]
    dropout: float
    attention_dropout: float
    activation_dropout: float
    layerdrop: Mapping[str, float]


def read_options(checkpoint: Any, origin: str) -> FairseqOptions:
    """Read and check the options of a checkpoint.

    Raises:
        ValueError: this is not a fairseq checkpoint, or an option has a value that this model does not support.
    """
    if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get("model"), Mapping):
        raise ValueError(f"{origin} must be a fairseq checkpoint with 'args' or 'cfg' and 'model', got none.")
    if not is_state_dict(checkpoint["model"]):
        raise ValueError(f"'model' of {origin} must be a state dict of named tensors.")
    stored = as_mapping(checkpoint.get("args")) or as_mapping(as_mapping(checkpoint.get("cfg")).get("model"))
    if not stored:
        raise ValueError(f"{origin} must contain the model's options as 'args' or in 'cfg', got neither.")
    options = flatten(stored)
    check_options(options)
    return FairseqOptions(
        num_heads=options.get("encoder_attention_heads"),
        pre_norm=bool(options.get("encoder_normalize_before")),
        activation=options.get("activation_fn", "relu"),
        scale_embedding=not options.get("no_scale_embedding"),
        share_all_embeddings=bool(options.get("share_all_embeddings")),
        tie_output=bool(options.get("share_all_embeddings") or options.get("share_decoder_input_output_embed")),
        positions=not options.get("no_token_positional_embeddings"),
        learned_positions=(bool(options.get("encoder_learned_pos")), bool(options.get("decoder_learned_pos"))),
        max_positions=(position_count(options, "source"), position_count(options, "target")),
        dropout=options.get("dropout", 0.1),
        attention_dropout=options.get("attention_dropout") or 0.0,
        activation_dropout=options.get("activation_dropout") or options.get("relu_dropout") or 0.0,
        layerdrop={name: options[name] for name in ("encoder_layerdrop", "decoder_layerdrop") if options.get(name)},
    )


def flatten(stored: Mapping[str, Any]) -> dict[str, Any]:
    """The options, by their names on fairseq's command line.

    Raises:
        ValueError: an option is a tensor.
    """
    options = dict(stored)
    for part in NESTED:
        inner = options.pop(part, None)
        if isinstance(inner, Mapping | Namespace):
            options |= {f"{part}_{name}": value for name, value in as_mapping(inner).items()}
    for name, value in options.items():
        if isinstance(value, Tensor):
            raise ValueError(
                f"{printable(str(name))} must be a plain value, got a tensor of shape {list(value.shape)}."
            )
    return options


def as_mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Namespace):
        return vars(value)
    return value if isinstance(value, Mapping) else {}


def check_options(options: Mapping[str, Any]) -> None:
    """Raise a `ValueError` that names the first unsupported option."""
    architecture = options.get("arch") or options.get("_name") or ARCHITECTURES[0]
    if architecture not in ARCHITECTURES:
        raise ValueError(
            f"arch must be one of {', '.join(ARCHITECTURES)}, got {format_value(architecture)}. If it only sets "
            "options of fairseq's transformer, store 'transformer' in the checkpoint."
        )
    for name in UNSUPPORTED:
        if options.get(name):
            raise ValueError(f"{name} must be off, got {format_value(options[name])}.")
    for name in EQUAL_IN_STACKS:
        encoder, decoder = options.get(f"encoder_{name}"), options.get(f"decoder_{name}")
        if encoder is not None and decoder is not None and encoder != decoder:
            raise ValueError(
                f"encoder_{name} and decoder_{name} must be equal, got {format_value(encoder)} and "
                f"{format_value(decoder)}."
            )
    width = options.get("decoder_embed_dim")
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if width is not None and options.get(name) not in (None, width):
            raise ValueError(f"{name} must be decoder_embed_dim={width}, got {format_value(options[name])}.")
    activation = options.get("activation_fn", "relu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"activation_fn must be one of {', '.join(ACTIVATIONS)}, got {format_value(activation)}.")


def position_count(options: Mapping[str, Any], side: str) -> int:
    """The maximum number of tokens of a `"source"` or a `"target"`, if positions are not learned.

    Raises:
        ValueError: the option is not a positive integer, or exceeds `MAX_POSITIONS`.
    """
    name = f"max_{side}_positions"
    count = options.get(name)
    if count is None:
        return DEFAULT_POSITIONS
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MAX_POSITIONS:
        raise ValueError(f"{name} must be an integer from 1 to {MAX_POSITIONS}, got {format_value(count)}.")
    return count
