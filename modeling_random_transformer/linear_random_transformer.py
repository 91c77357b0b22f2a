"""Linear layers and layer norms as plain operations, for the few rows of a step of `generate()`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.utils import output_capturing

PACKED_FROM = 2**17  # elements of a weight matrix; a smaller one is multiplied no slower as it lies
PACKING_PAYS = 16  # products that a weight has to be packed for
STANDARD = {nn.Linear: nn.Linear.forward, nn.LayerNorm: nn.LayerNorm.forward}  # to notice a patched class
IN_HARDWARE = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}


class PackedLinear:
    """Linear layers side by side as one product, their weights copied in the order in which oneDNN reads them.

    `torch.nn.functional.linear` takes weights as they lie, and for a few rows spends most of its time on reading them
    in an order that does not suit the processor. Packing costs about ten products.

    Args:
        layers: layers of the same input, of whose outputs the product's are made up, in their order.
        rows: rows that a product will have.
    """

    def __init__(self, layers: tuple[nn.Linear, ...], rows: int):
        weights: list[Tensor] = [layer.weight for layer in layers]
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, rows)
        self.bias = torch.cat(biases) if biases else None

    def __call__(self, states: Tensor) -> Tensor:
        """`[…, input width]` → `[…, sum of the output widths]`."""
        return torch.ops.mkldnn._linear_pointwise(states, self.weight, self.bias, "none", [], "")

    def add(self, residual: Tensor, states: Tensor) -> Tensor:
        """`residual` and the product of `states`, rounded once."""
        return torch.ops.mkldnn._linear_pointwise.binary(states, residual, self.weight, self.bias, "add")


def can_pack(*modules: nn.Module) -> bool:
    """Whether these are plain linear layers, alike in bias and dtype, that oneDNN multiplies faster when packed."""
    layers = [module for module in modules if isinstance(module, nn.Linear) and plain(module)]
    if len(layers) < len(modules) or torch.is_grad_enabled():
        return False
    weight, elements = layers[0].weight, sum(layer.weight.numel() for layer in layers)
    alike = len({(layer.bias is None, layer.weight.device, layer.weight.dtype) for layer in layers}) == 1
    return alike and weight.is_cpu and elements >= PACKED_FROM and packs() and multiplies(weight.dtype)


def packs() -> bool:
    """Whether oneDNN is here and wanted (see `torch.backends.mkldnn.flags`), and packs."""
    known = (hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    return torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled) and all(known)


def multiplies(dtype: torch.dtype) -> bool:
    """Whether this CPU has instructions for products in `dtype`, by what oneDNN says."""
    if dtype not in IN_HARDWARE:
        return dtype == torch.float32
    supported = getattr(torch.ops.mkldnn, IN_HARDWARE[dtype], None)
    return supported is not None and supported()


def plain(module: nn.Linear) -> bool:
    """Whether the layer computes just what its class says, in the dtype of its weights, which are here as a whole."""
    if not standard(module, nn.Linear):
        return False
    weight = module.weight
    return type(weight.data) is Tensor and not torch.is_autocast_enabled(weight.device.type)


def standard(module: Any, kind: type[nn.Module]) -> bool:
    """Whether the module computes what PyTorch's class `kind` does: no subclass, no hook, no replaced `forward`."""
    return type(module) is kind and kind.forward is STANDARD[kind] and not hooked(module)


def hooked(module: nn.Module) -> bool:
    """Whether calling this module runs more than the `forward` of its class: a hook, or a replaced or compiled one.

    The hooks of transformers' `capture_outputs` do not count. They stay installed after the first call with
    `output_attentions` or `output_hidden_states`, and do nothing while neither is requested.
    """
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return (
        any(getattr(hook, "__module__", None) != output_capturing.__name__ for hook in hooks)
        or "forward" in vars(module)
        or module._compiled_call_impl is not None
        or nn.modules.module._has_any_global_hook()
    )


def bare(module: Any, rows: int = 0) -> Callable[[Tensor], Tensor]:
    """What a linear layer or a layer norm computes, without the way through `nn.Module`; else the module itself.

    Args:
        module: the layer.
        rows: pack the weights for so many rows; 0 leaves them as they lie.
    """
    if rows and can_pack(module):
        return PackedLinear((module,), rows)
    if standard(module, nn.Linear):
        weight, bias = module.weight, module.bias
        return lambda states: linear(states, weight, bias)
    if standard(module, nn.LayerNorm):
        shape, scale, shift, eps = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda states: torch.layer_norm(states, shape, scale, shift, eps)
    return called(module)


def called(module: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The module itself, for adapters, hooks and other classes. Rows are passed as sequences of one token."""
    return lambda states: module(states[:, None])[:, 0] if states.dim() == 2 else module(states)


def joined(modules: tuple[nn.Module, ...], rows: int = 0) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """The outputs of several layers for the same input, by one product where their weights can be packed."""
    if rows and can_pack(*modules):
        product = PackedLinear(modules, rows)  # type: ignore[arg-type]
        widths = [len(module.weight) for module in modules]  # type: ignore[arg-type]
        return lambda states: product(states).split(widths, dim=-1)
    each = [bare(module, rows) for module in modules]
    return lambda states: tuple(layer(states) for layer in each)


def adding(module: nn.Module, rows: int = 0) -> Callable[[Tensor, Tensor], Tensor]:
    """`residual + module(states)`; of a plain linear layer, as one product that starts from residual and bias."""
    if not isinstance(module, nn.Linear) or not plain(module):
        call = called(module)
        return lambda residual, states: residual + call(states)
    if rows and can_pack(module):
        return PackedLinear((module,), rows).add
    weight, bias = module.weight.t(), 0 if module.bias is None else module.bias
    return lambda residual, states: (residual + bias).addmm_(states, weight)
