"""The options of a Marian model, and those that this model supports."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ..utils.errors import format_value

# Marian's activation names and transformers'. Up to version 1.12.0, gelu is swish with the factor 1.702.
ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
APPROXIMATE_GELU, LAST_APPROXIMATE_GELU = "quick_gelu", (1, 12, 0)
MAX_SIZE = 2**20
VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
# Options that change the computation, and the only value that this model supports, which is Marian's default.
FIXED: dict[str, Any] = {
    "transformer-ffn-depth": 2,
    "transformer-no-projection": False,
    "transformer-pool": False,
    "transformer-tied-layers": [],
    "right-left": False,
    "ulr": False,
    "lemma-dim-emb": 0,
}
# Options of the decoder's feed-forward network in recent versions; 0 stands for the value of the encoder's.
DECODER_FFN = {
    "transformer-decoder-dim-ffn": "transformer-dim-ffn",
    "transformer-decoder-ffn-depth": "transformer-ffn-depth",
}
DROPOUT = {
    "transformer-dropout": "dropout",
    "transformer-dropout-attention": "attention_dropout",
    "transformer-dropout-ffn": "activation_dropout",
}
LEARNED_POSITIONS = ("transformer-train-position-embeddings", "transformer-train-positions")  # the second is older


@dataclass(frozen=True)
class NpzOptions:
    """The options that a converted model depends on."""

    d_model: int
    d_ff: int
    num_heads: int
    encoder_layers: int
    decoder_layers: int
    activation: str
    norm_order: Literal["pre", "post"]
    final_norm: bool
    learned_positions: bool
    share_embeddings: bool
    tie_output: bool
    output_bias: bool
    dropout: Mapping[str, float]


def parse_options(options: Mapping[str, Any]) -> NpzOptions:
    """Check the options and read those that this model depends on.

    Raises:
        ValueError: an option is missing, or has a value that this model does not support. The message names both.
    """
    check_architecture(options)
    tied_all, tied_source = flag(options, "tied-embeddings-all"), flag(options, "tied-embeddings-src")
    return NpzOptions(
        d_model=size(options, "dim-emb"),
        d_ff=size(options, "transformer-dim-ffn"),
        num_heads=size(options, "transformer-heads"),
        encoder_layers=size(options, "enc-depth"),
        decoder_layers=size(options, "dec-depth"),
        activation=activation(options),
        norm_order=norm_order(options),
        final_norm=final_norm(options),
        learned_positions=any(flag(options, name) for name in LEARNED_POSITIONS),
        share_embeddings=tied_all or tied_source,
        tie_output=tied_all or flag(options, "tied-embeddings"),
        output_bias=not flag(options, "output-omit-bias"),
        dropout={field: rate(options, name) for name, field in DROPOUT.items() if name in options},
    )


def check_architecture(options: Mapping[str, Any]) -> None:
    """Raise a `ValueError` that names the first option of another architecture."""
    if options.get("type") != "transformer":
        raise invalid("type", "'transformer'", options.get("type"))
    layer = options.get("transformer-decoder-autoreg", "self-attention")
    if layer != "self-attention":
        cell = f" with dec-cell={format_value(options.get('dec-cell'))}" if layer == "rnn" else ""
        raise ValueError(f"transformer-decoder-autoreg must be 'self-attention', got {format_value(layer)}{cell}.")
    for name, allowed in FIXED.items():
        if options.get(name) not in (None, allowed):
            raise invalid(name, repr(allowed), options[name])
    for name, encoder in DECODER_FFN.items():
        if options.get(name) not in (None, 0, options.get(encoder)):
            raise invalid(name, f"{encoder}={options.get(encoder)}", options[name])
    inputs = options.get("input-types") or []
    if not isinstance(inputs, list) or any(kind != "sequence" for kind in inputs):
        raise invalid("input-types", "'sequence' for each input", inputs)
    vocabularies = options.get("dim-vocabs")
    if vocabularies is not None and (not isinstance(vocabularies, list) or len(vocabularies) != 2):
        raise invalid("dim-vocabs", "the sizes of one source and one target vocabulary", vocabularies)
    if operations(options, "transformer-postprocess-emb", "d"):
        raise invalid("transformer-postprocess-emb", "'d' or ''", options["transformer-postprocess-emb"])


def activation(options: Mapping[str, Any]) -> str:
    """transformers' name of the activation.

    Raises:
        ValueError: the activation is not supported.
    """
    name = options.get("transformer-ffn-activation", "swish")
    if not isinstance(name, str) or name not in ACTIVATIONS:
        raise invalid("transformer-ffn-activation", f"one of {', '.join(ACTIVATIONS)}", name)
    version = VERSION.match(str(options.get("version", "")))
    is_recent = version is not None and tuple(map(int, version.groups())) > LAST_APPROXIMATE_GELU
    return APPROXIMATE_GELU if name == "gelu" and not is_recent else ACTIVATIONS[name]


def norm_order(options: Mapping[str, Any]) -> Literal["pre", "post"]:
    """The norm order: `d` stands for dropout, `a` for the residual connection and `n` for layer normalization.

    Raises:
        ValueError: the operations before and after a sublayer have another order, or the model is a pre-norm model of
            an old version.
    """
    before = operations(options, "transformer-preprocess", "")
    after = operations(options, "transformer-postprocess", "dan")
    if (before, after) == ("", "an"):
        return "post"
    if (before, after) == ("n", "a"):
        if "transformer-postprocess-top" not in options:
            raise ValueError(
                "transformer-postprocess-top must be stored with transformer-preprocess='n', but it is missing: before "
                "version 1.10, Marian did not normalize the keys and values of pre-norm models."
            )
        return "pre"
    found = " and ".join(
        format_value(options.get(f"transformer-{name}", default))
        for name, default in (("preprocess", ""), ("postprocess", "dan"))
    )
    raise ValueError(
        "transformer-preprocess and transformer-postprocess must be '' and 'dan' (post-norm) or 'n' and 'da' "
        f"(pre-norm), got {found}."
    )


def final_norm(options: Mapping[str, Any]) -> bool:
    """Whether both stacks end with a LayerNorm.

    Raises:
        ValueError: they end with another operation.
    """
    top = operations(options, "transformer-postprocess-top", "")
    if top not in ("", "n"):
        raise invalid("transformer-postprocess-top", "'' or 'n'", options["transformer-postprocess-top"])
    return top == "n"


def operations(options: Mapping[str, Any], name: str, default: str) -> str:
    """The operations of an option, without dropout, which affects training only."""
    value = options.get(name, default)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise invalid(name, "a string of operations", value)
    return value.replace("d", "")


def flag(options: Mapping[str, Any], name: str) -> bool:
    value = options.get(name, False)
    if not isinstance(value, bool):
        raise invalid(name, "true or false", value)
    return value


def size(options: Mapping[str, Any], name: str) -> int:
    value = options.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SIZE:
        raise invalid(name, f"an integer from 1 to {MAX_SIZE}", value)
    return value


def rate(options: Mapping[str, Any], name: str) -> float:
    value = options[name]
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
        raise invalid(name, "a number from 0 to below 1", value)
    return float(value)


def invalid(name: str, allowed: str, value: Any) -> ValueError:
    return ValueError(f"{name} must be {allowed}, got {format_value(value)}.")
