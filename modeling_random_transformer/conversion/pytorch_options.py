"""Options of an `nn.Transformer` that cannot be derived from its weights."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear  # type of nn.MultiheadAttention.out_proj

ACTIVATIONS = ("relu", "gelu")
# Modules of a layer. Subclasses are not supported, since they may use the same weights differently.
MODULES: dict[str, type[nn.Module]] = {
    **dict.fromkeys(("self_attn", "multihead_attn"), nn.MultiheadAttention),
    **dict.fromkeys(("linear1", "linear2"), nn.Linear),
    **dict.fromkeys(("norm1", "norm2", "norm3"), nn.LayerNorm),
}


@dataclass(frozen=True)
class TorchOptions:
    """Options that a state dict does not contain. The defaults are those of `nn.Transformer`."""

    num_heads: int
    norm_first: bool = False
    activation: str = "relu"
    layer_norm_eps: float = 1e-5
    dropout: float = 0.1


def find_options(transformer: nn.Transformer | Mapping[str, Tensor], arguments: dict[str, Any]) -> TorchOptions:
    """Read the options of a module, or use the arguments that are given with a state dict.

    Raises:
        ValueError: an argument differs from that of the module, or `num_heads` is missing.
    """
    if isinstance(transformer, nn.Transformer):
        options = read_options(transformer)
        for name, value in arguments.items():
            if getattr(options, name) != value:
                raise ValueError(f"{name} must equal that of the module, {getattr(options, name)!r}, got {value!r}.")
        return options
    if "num_heads" not in arguments:
        raise ValueError("num_heads must be given with a state dict, got None.")
    options = TorchOptions(**arguments)
    if options.activation not in ACTIVATIONS:
        raise ValueError(f"activation must be 'relu' or 'gelu', got {options.activation!r}.")
    return options


def read_options(transformer: nn.Transformer) -> TorchOptions:
    """Read the options that all layers of a module share.

    Raises:
        ValueError: layers differ, or a submodule is not an instance of PyTorch's own class.
    """
    options_of_layers = set()
    for name, stack_class, layer_class in (
        ("encoder", nn.TransformerEncoder, nn.TransformerEncoderLayer),
        ("decoder", nn.TransformerDecoder, nn.TransformerDecoderLayer),
    ):
        stack: Any = getattr(transformer, name)
        check_type(f"transformer.{name}", stack, stack_class)
        if not len(stack.layers):
            raise ValueError(f"transformer.{name} must have at least one layer, got none.")
        for layer in stack.layers:
            check_type(f"each layer of transformer.{name}", layer, layer_class)
            options_of_layers.add(read_layer(layer))
        if stack.norm is not None:
            check_type(f"transformer.{name}.norm", stack.norm, nn.LayerNorm)
            options_of_layers.add(replace(read_layer(stack.layers[-1]), layer_norm_eps=stack.norm.eps))
    if len(options_of_layers) != 1:
        differing = [
            f.name for f in fields(TorchOptions) if len({getattr(options, f.name) for options in options_of_layers}) > 1
        ]
        raise ValueError(f"all layers of the nn.Transformer must have the same {' and '.join(differing)}.")
    return options_of_layers.pop()


def read_layer(layer: Any) -> TorchOptions:
    modules = {name: getattr(layer, name) for name in MODULES if hasattr(layer, name)}
    for name, module in modules.items():
        check_type(f"{name} of each layer", module, MODULES[name])
    attentions = [module for module in modules.values() if isinstance(module, nn.MultiheadAttention)]
    for attention in attentions:
        check_type("out_proj of each attention", attention.out_proj, NonDynamicallyQuantizableLinear)
        if attention.add_zero_attn:
            raise ValueError("add_zero_attn must be False in every attention, got True.")
    heads = {attention.num_heads for attention in attentions}
    norms = {module.eps for module in modules.values() if isinstance(module, nn.LayerNorm)}
    for name, values in (("num_heads", heads), ("layer_norm_eps", norms)):
        if len(values) != 1:
            raise ValueError(f"{name} must be the same throughout a layer, got {sorted(values)}.")
    rate = getattr(layer.dropout1, "p", 0.0)  # 0 if the module was replaced, for example by nn.Identity
    return TorchOptions(heads.pop(), layer.norm_first, activation_name(layer.activation), norms.pop(), rate)


def activation_name(activation: Any) -> str:
    if activation is functional.relu or type(activation) is nn.ReLU:
        return "relu"
    if activation is functional.gelu or (type(activation) is nn.GELU and activation.approximate == "none"):
        return "gelu"
    raise ValueError(f"activation must be relu or gelu, got {activation}.")


def check_type(name: str, module: nn.Module, expected: type[nn.Module]) -> None:
    if type(module) is not expected:
        raise ValueError(f"{name} must be an nn.{expected.__name__}, got {type(module).__name__}.")
