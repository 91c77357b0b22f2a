"""What the weights of an `nn.Transformer` do not say: heads, the order of the norms, activation, eps, dropout."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear  # what nn.MultiheadAttention makes

ACTIVATIONS = ("relu", "gelu")
# What computes in a layer. A class of one's own may compute something else with the same weights.
PARTS: dict[str, type[nn.Module]] = {
    **dict.fromkeys(("self_attn", "multihead_attn"), nn.MultiheadAttention),
    **dict.fromkeys(("linear1", "linear2"), nn.Linear),
    **dict.fromkeys(("norm1", "norm2", "norm3"), nn.LayerNorm),
}


@dataclass(frozen=True)
class Options:
    """What a state dict of `nn.Transformer` does not say."""

    num_heads: int
    norm_first: bool = False
    activation: str = "relu"
    layer_norm_eps: float = 1e-5
    dropout: float = 0.1


def find_options(transformer: nn.Transformer | Mapping[str, Tensor], given: dict[str, Any]) -> Options:
    """What the module says, or what is given.

    Raises:
        ValueError: the two contradict each other, or neither says how many heads there are.
    """
    if isinstance(transformer, nn.Transformer):
        options = read_options(transformer)
        for name, value in given.items():
            if getattr(options, name) != value:
                raise ValueError(f"{name} must be what the module has, {getattr(options, name)!r}, got {value!r}.")
        return options
    if "num_heads" not in given:
        raise ValueError("num_heads must be given for a state dict, which does not say it, got None.")
    options = Options(**given)
    if options.activation not in ACTIVATIONS:
        raise ValueError(f"activation must be 'relu' or 'gelu', got {options.activation!r}.")
    return options


def read_options(transformer: nn.Transformer) -> Options:
    """The options that all layers of a module share.

    Raises:
        ValueError: they do not, or a part of the module is not torch's own.
    """
    found = set()
    for name, kind, layer_kind in (
        ("encoder", nn.TransformerEncoder, nn.TransformerEncoderLayer),
        ("decoder", nn.TransformerDecoder, nn.TransformerDecoderLayer),
    ):
        stack: Any = getattr(transformer, name)
        check_type(f"transformer.{name}", stack, kind)
        if not len(stack.layers):
            raise ValueError(f"transformer.{name} must have at least one layer, got none.")
        for layer in stack.layers:
            check_type(f"each layer of transformer.{name}", layer, layer_kind)
            found.add(read_layer(layer))
        if stack.norm is not None:
            check_type(f"transformer.{name}.norm", stack.norm, nn.LayerNorm)
            found.add(replace(read_layer(stack.layers[-1]), layer_norm_eps=stack.norm.eps))
    if len(found) != 1:
        differing = [f.name for f in fields(Options) if len({getattr(options, f.name) for options in found}) > 1]
        raise ValueError(f"all layers of the nn.Transformer must have the same {' and '.join(differing)}.")
    return found.pop()


def read_layer(layer: Any) -> Options:
    parts = {name: getattr(layer, name) for name in PARTS if hasattr(layer, name)}
    for name, part in parts.items():
        check_type(f"{name} of each layer", part, PARTS[name])
    attentions = [part for part in parts.values() if isinstance(part, nn.MultiheadAttention)]
    for attention in attentions:
        check_type("out_proj of each attention", attention.out_proj, NonDynamicallyQuantizableLinear)
        if attention.add_zero_attn:
            raise ValueError("add_zero_attn must be False in every attention, got True.")
    heads = {attention.num_heads for attention in attentions}
    norms = {part.eps for part in parts.values() if isinstance(part, nn.LayerNorm)}
    for name, found in (("num_heads", heads), ("layer_norm_eps", norms)):
        if len(found) != 1:
            raise ValueError(f"{name} must be the same all over a layer, got {sorted(found)}.")
    rate = getattr(layer.dropout1, "p", 0.0)  # which has none where a user took it out
    return Options(heads.pop(), layer.norm_first, activation_name(layer.activation), norms.pop(), rate)


def activation_name(activation: Any) -> str:
    if activation is functional.relu or type(activation) is nn.ReLU:
        return "relu"
    if activation is functional.gelu or (type(activation) is nn.GELU and activation.approximate == "none"):
        return "gelu"
    raise ValueError(f"activation must be relu or gelu, as of nn.Transformer, got {activation}.")


def check_type(name: str, module: nn.Module, kind: type[nn.Module]) -> None:
    if type(module) is not kind:
        raise ValueError(f"{name} must be an nn.{kind.__name__}, got {type(module).__name__}.")
