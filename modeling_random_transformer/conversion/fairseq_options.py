"""The options of a fairseq checkpoint, read from any of the three ways in which fairseq has stored them."""

import reprlib
from argparse import Namespace
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .files import is_state_dict
from .state_dict_mapper import Transfer

POSITIONS = 1024  # fairseq's max_source_positions and max_target_positions by default
MOST_POSITIONS = 2**20  # of a table that is computed
PAD, EOS, UNK = 1, 2, 3  # fairseq's <pad>, </s> and <unk>; <s> is 0
NESTED = ("encoder", "decoder", "quant_noise")
# fairseq's name for an activation -> transformers'.
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
# Options that change what is computed and have no counterpart here; all are off by default.
BOTH_STACKS = ("add_adapters", "recurrent_stacking", "factorized_embed_dim", "layers_to_keep", "xformers_att_config")
REFUSED = (
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
    *(f"{stack}_{name}" for stack in ("encoder", "decoder") for name in BOTH_STACKS),
)
EQUAL = ("embed_dim", "ffn_embed_dim", "attention_heads", "normalize_before")


def read_options(checkpoint: Any, origin: str) -> dict[str, Any]:
    """The model's options by the names of fairseq's command line.

    Raises:
        ValueError: the checkpoint is none of fairseq's.
    """
    if not isinstance(checkpoint, Mapping) or not isinstance(checkpoint.get("model"), Mapping):
        raise ValueError(f"{origin} must be a fairseq checkpoint with 'args' or 'cfg' and 'model', got none.")
    if not is_state_dict(checkpoint["model"]):
        raise ValueError(f"'model' of {origin} must be a state dict, tensors by their names.")
    found = checkpoint.get("args") or as_mapping(checkpoint.get("cfg") or {}).get("model")
    if not found:
        raise ValueError(f"{origin} must hold the model's options as 'args' or in 'cfg', got neither.")
    options = dict(as_mapping(found))
    for part in NESTED:
        inner = options.pop(part, None)
        if isinstance(inner, Mapping | Namespace):
            options |= {f"{part}_{name}": value for name, value in as_mapping(inner).items()}
    for name, value in options.items():
        if isinstance(value, Tensor):
            raise ValueError(f"{name} must be a plain value, got a tensor of shape {list(value.shape)}.")
    return options


def as_mapping(value: Any) -> Mapping[str, Any]:
    if isinstance(value, Namespace):
        return vars(value)
    return value if isinstance(value, Mapping) else {}


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse by name what our model has not.

    Raises:
        ValueError: an option has a value that cannot be represented.
    """
    for name in REFUSED:
        if options.get(name):
            raise ValueError(f"{name} must be off, got {options[name]!r}: this model has nothing like it.")
    for name in EQUAL:
        encoder, decoder = options.get(f"encoder_{name}"), options.get(f"decoder_{name}")
        if encoder is not None and decoder is not None and encoder != decoder:
            raise ValueError(f"encoder_{name} and decoder_{name} must be the same, got {encoder!r} and {decoder!r}.")
    width = options.get("decoder_embed_dim")
    for name in ("decoder_input_dim", "decoder_output_dim"):
        if width is not None and options.get(name) not in (None, width):
            raise ValueError(f"{name} must be decoder_embed_dim={width}, got {options[name]!r}.")
    for end in ("source", "target"):
        position_count(options, end)
    activation = options.get("activation_fn", "relu")
    if not isinstance(activation, str) or activation not in ACTIVATIONS:
        raise ValueError(f"activation_fn must be one of {', '.join(ACTIVATIONS)}, got {activation!r}.")


def position_count(options: Mapping[str, Any], end: str) -> int:
    """How many tokens a source or a target may have, where positions are not learned.

    Raises:
        ValueError: the option is not a positive integer, or too large for a table of positions.
    """
    name = f"max_{end}_positions"
    count = options.get(name)
    if count is None:
        return POSITIONS
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= MOST_POSITIONS:
        raise ValueError(f"{name} must be an integer from 1 to {MOST_POSITIONS}, got {reprlib.repr(count)}.")
    return count


def derive_fields(transfer: Transfer, options: Mapping[str, Any], num_heads: int | None) -> None:
    """Every config field that does not follow from the weights.

    Raises:
        ValueError: the number of heads is neither stored nor given, or the two differ.
    """
    stored = options.get("encoder_attention_heads")
    if None not in (stored, num_heads) and stored != num_heads:
        raise ValueError(f"num_heads must be encoder_attention_heads={stored}, got {num_heads}.")
    if stored is None and num_heads is None:
        raise ValueError("num_heads must be given, as the checkpoint does not say encoder_attention_heads, got None.")
    transfer.derive("encoder_attention_heads" if stored else "given", num_heads=stored or num_heads)
    activation = options.get("activation_fn", "relu")
    transfer.derive(f"activation_fn={activation}", activation_function=ACTIVATIONS[activation])
    before = bool(options.get("encoder_normalize_before"))
    transfer.derive(f"encoder_normalize_before={before}", norm_order="pre" if before else "post", layer_norm_eps=1e-5)
    transfer.derive("no_scale_embedding", scale_embedding=not options.get("no_scale_embedding"))
    derive_rates(transfer, options)
    ids = {"pad_token_id": PAD, "bos_token_id": 0, "eos_token_id": EOS, "decoder_start_token_id": EOS}
    transfer.derive("fairseq's dictionary; its decoder starts from </s>", **ids)


def derive_rates(transfer: Transfer, options: Mapping[str, Any]) -> None:
    transfer.derive("dropout", dropout=options.get("dropout", 0.1))
    transfer.derive("attention_dropout", attention_dropout=options.get("attention_dropout") or 0.0)
    inner = options.get("activation_dropout") or options.get("relu_dropout") or 0.0
    transfer.derive("activation_dropout", activation_dropout=inner)
    for name in ("encoder_layerdrop", "decoder_layerdrop"):
        if options.get(name):
            transfer.report.notes.append(f"{name}={options[name]} concerns training only and is left out.")
