"""Dynamic int8 quantization for inference on CPUs: linear layers, and the quantization method of transformers."""

import timeit
import warnings
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.core_model_loading import ConversionOps
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING, AUTO_QUANTIZER_MAPPING
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from .ops_random_transformer import MIN_PACKED_ELEMENTS, is_traced, joined_parameters, tensors_of
from .snapshot_random_transformer import TensorContents

QUANTIZATION_METHOD = "dynamic_int8"


# Linear layers with int8 weights, and activations that are quantized row by row at each call


class Int8Linear(nn.Module):
    """A linear layer with int8 weights `W`, one scale `t` per output, and dynamically quantized activations.

    `y = s · (round(x / s) · Wᵀ) ⊙ t + b` with `s = max|x| / 127` for each row `x` (63 instead of 127 on CPUs
    without VNNI). Sums of int8 products are exact and all kernels round alike, so a row's result depends neither on
    the other rows nor on the kernel. Layers with fewer than `MIN_PACKED_ELEMENTS` weights, devices other than CPUs
    and CPUs without kernels multiply in floating point, with `W ⊙ t`.

    The weights cannot be trained.

    Args:
        in_features: width of the inputs.
        out_features: width of the outputs.
        bias: add a bias.
        dtype: dtype of `weight`; a floating-point dtype while transformers loads weights that it quantizes.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype | None = torch.int8):
        super().__init__()
        # Packed weights of this layer alone, and joined with other layers.
        self.packed_layers: dict[tuple[Int8Linear, ...], PackedInt8Linear] = {}
        self.in_features = in_features
        self.out_features = out_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features, dtype=dtype), requires_grad=False)
        self.weight_scale = nn.Parameter(torch.empty(out_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None

    @classmethod
    def from_linear(cls, layer: nn.Linear) -> "Int8Linear":
        """Quantize the weights of a linear layer."""
        quantized = cls(layer.in_features, layer.out_features, layer.bias is not None).to(layer.weight.device)
        weight, scale = quantize_rows(layer.weight)
        quantized.load_state_dict({**layer.state_dict(), "weight": weight, "weight_scale": scale})
        return quantized

    def to_linear(self) -> nn.Linear:
        """A linear layer with the dequantized weights."""
        layer = nn.Linear(self.in_features, self.out_features, self.bias is not None, device="meta")
        layer.weight = nn.Parameter(self.dequantized_weight())
        if self.bias is not None:
            layer.bias = nn.Parameter(self.bias.detach().clone())
        return layer

    def forward(self, states: Tensor) -> Tensor:
        """`[…, in_features]` → `[…, out_features]`.

        Raises:
            RuntimeError: for inputs that require gradients.
        """
        if states.requires_grad:
            raise RuntimeError("Layers with int8 weights cannot be trained: the inputs must not require gradients.")
        packed = packed_int8_linear((self,))
        if packed is None:
            return linear(states, self.dequantized_weight(), self.bias)
        return packed(states) if states.dim() > 1 else packed(states[None])[0]

    def dequantized_weight(self) -> Tensor:
        """The weights in the dtype of the scales, `[out_features, in_features]`."""
        return self.weight.to(self.weight_scale.dtype) * self.weight_scale[:, None]

    def __getstate__(self) -> dict[str, Any]:  # copies and pickles without the packed weights
        return {**vars(self), "packed_layers": {}}


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights `[outputs, inputs]` → int8 weights and one float32 scale per output, `[outputs]`."""
    weight = weight.detach().float()
    scale = weight.abs().amax(dim=1) / 127
    divisor = scale.masked_fill(scale == 0, 1)[:, None]
    return (weight / divisor).round().to(torch.int8), scale


class PackedInt8Linear:
    """One or more `Int8Linear` layers as one matrix product, with weights packed for the fastest kernel.

    The first product for each size measures which kernel is fastest. Results do not depend on the choice.

    Args:
        layers: layers with the same input; their outputs are concatenated in this order.
    """

    def __init__(self, layers: tuple[Int8Linear, ...]):
        tensors = tensors_of(layers)
        self.contents = TensorContents(tensors)
        # Keeps the memory, so that no other tensor gets the same address.
        self.sources = [tensor.detach() for tensor in tensors]
        self.weight, self.bias = joined_parameters(layers)
        self.scale = torch.cat([layer.weight_scale for layer in layers])
        self.max_activation = int8_kernels().max_activation
        # A tensor, since multiplying by a Python float takes twice the time.
        self.inverse_max_activation = torch.tensor(1 / self.max_activation)
        self.kernels: dict[type, Any] = {}  # packed weights for each kernel

    def __call__(self, states: Tensor) -> Tensor:
        """`[…, input width]` → `[…, sum of the output widths]`."""
        product, scale = self.multiply(states)
        return product.mul_(scale) if self.bias is None else torch.addcmul(self.bias, product, scale)

    def add_residual(self, residual: Tensor, states: Tensor) -> Tensor:
        """`residual + self(states)`."""
        product, scale = self.multiply(states)
        return torch.addcmul(residual if self.bias is None else residual + self.bias, product, scale)

    def multiply(self, states: Tensor) -> tuple[Tensor, Tensor]:
        """Activations `[…, inputs]` → results without scale and bias `[…, outputs]`, and the rows' scales `[…, 1]`."""
        states = states.float()  # autocast may pass half precision
        scale = states.abs().amax(dim=-1, keepdim=True).mul_(self.inverse_max_activation)
        # A row of zeros becomes NaN, for which the kernels use some integer. It is multiplied by the scale, 0.
        return self.fastest_kernel(states)(states / scale), scale

    def fastest_kernel(self, states: Tensor) -> Any:
        """The fastest kernel for as many rows as `states` has, measured once for each power of two."""
        rows = states.numel() // states.shape[-1]
        size = (*self.weight.shape, rows.bit_length())
        if size not in FASTEST_INT8:
            seconds = {}
            for kernel_class in int8_kernels().classes:
                multiply = partial(self.kernel(kernel_class), states)
                seconds[kernel_class] = min(timeit.repeat(multiply, number=1))
            FASTEST_INT8[size] = min(seconds, key=seconds.__getitem__)
        return self.kernel(FASTEST_INT8[size])

    def kernel(self, kernel_class: type) -> Any:
        """The kernel of this class, which packs the weights at the first use."""
        if kernel_class not in self.kernels:
            self.kernels[kernel_class] = kernel_class(self.weight, self.scale, self.max_activation)
        return self.kernels[kernel_class]


def packed_int8_linear(layers: tuple[Int8Linear, ...]) -> PackedInt8Linear | None:
    """The layers as one product, cached by each layer, or `None` if one of them must multiply in floating point.

    The size of a layer alone decides whether it multiplies in floating point, so fused and single layers compute the
    same.
    """
    scale = layers[0].weight_scale
    if not scale.is_cpu or scale.dtype != torch.float32 or is_traced() or not int8_kernels().classes:
        return None
    if any(layer.weight.numel() < MIN_PACKED_ELEMENTS for layer in layers):
        return None
    packed_layers = layers[0].packed_layers
    if layers not in packed_layers or not packed_layers[layers].contents.are_those_of(tensors_of(layers)):
        packed_layers[layers] = PackedInt8Linear(layers)
    return packed_layers[layers]


class FbgemmInt8:
    """`round(states) · Wᵀ ⊙ t` by FBGEMM, the fastest kernel for a few rows. It also rounds the activations.

    Args:
        weight: int8 weights, `[outputs, inputs]`.
        scale: one scale per output, `[outputs]`.
        max_activation: the largest absolute value of the activations, which are shifted by one more to be unsigned.
    """

    def __init__(self, weight: Tensor, scale: Tensor, max_activation: int):
        self.zero_point = max_activation + 1
        with warnings.catch_warnings():  # PyTorch deprecates quantized tensors; oneDNN works without them
            warnings.simplefilter("ignore", UserWarning)
            zeros = torch.zeros(len(scale), dtype=torch.long)
            quantized = torch.quantize_per_channel(weight * scale[:, None], scale, zeros, 0, torch.qint8)
        self.weight = torch.ops.quantized.linear_prepack(quantized, None)

    def __call__(self, states: Tensor) -> Tensor:
        """`[rows, inputs]` → `[rows, outputs]`."""
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        return multiply(states, 1.0, self.zero_point, self.weight)


class OneDnnInt8:
    """The same product as `FbgemmInt8` by oneDNN, the fastest kernel for many rows on CPUs with AMX."""

    def __init__(self, weight: Tensor, scale: Tensor, max_activation: int):
        self.zero_point = max_activation + 1
        self.weight = torch.ops.onednn.qlinear_prepack(weight, None)
        self.scale = scale
        self.zeros = torch.zeros(len(scale), dtype=torch.long)

    def __call__(self, states: Tensor) -> Tensor:
        """`[…, inputs]` → `[…, outputs]`."""
        if fbgemm_rounds_first():
            states = states.round()
        shifted = (states + self.zero_point).round_()
        product = torch.ops.onednn.qlinear_pointwise(
            shifted.to(torch.uint8),
            1.0,
            self.zero_point,
            self.weight,
            self.scale,
            self.zeros,
            None,  # bias
            1.0,  # scale, zero point and dtype of the output
            0,
            torch.float32,
            "none",  # activation, its arguments and its variant
            [],
            "",
        )
        return product.view(*states.shape[:-1], len(self.scale))  # oneDNN drops dimensions of an empty batch


@lru_cache
def fbgemm_rounds_first() -> bool:
    """Whether FBGEMM rounds activations before it adds the zero point, as in torch 2.14, or afterwards.

    The order matters for a value just beside .5, whose sum with the zero point is rounded to float32. Both kernels must
    give the same result. Without FBGEMM, any order is right.
    """
    beside_half = torch.tensor([[-62.5]]).nextafter(torch.tensor(-torch.inf))
    try:
        multiply = FbgemmInt8(torch.ones(1, 1, dtype=torch.int8), torch.ones(1), 127)
        return multiply(beside_half).item() == -63
    except (AttributeError, RuntimeError):
        return False


class Int8Kernels(NamedTuple):
    """The largest quantized activation, and the classes of the kernels whose results are exact up to it."""

    max_activation: int
    classes: tuple[type, ...]


@lru_cache
def int8_kernels() -> Int8Kernels:
    """The kernels of this CPU.

    CPUs without VNNI saturate sums of two products, unless the activations have 7 bits. Other CPUs and future versions
    of PyTorch may have no int8 operator. Without a kernel, `Int8Linear` multiplies in floating point.
    """
    for max_activation in (127, 63):
        classes = tuple(kernel for kernel in (FbgemmInt8, OneDnnInt8) if is_exact(kernel, max_activation))
        if classes:
            return Int8Kernels(max_activation, classes)
    return Int8Kernels(127, ())


def is_exact(kernel: type, max_activation: int) -> bool:
    """Whether the kernel is available, and its result is right for the largest values."""
    weight = torch.tensor([[127], [-127]], dtype=torch.int8).repeat(8, 64)
    expected = weight[:, 0] * 64.0 * max_activation
    try:
        multiply = kernel(weight, torch.ones(16), max_activation)
        for rows in (1, 16):
            result = multiply(torch.full((rows, 64), float(max_activation)))
            if not (result == expected).all():
                return False
    except (AttributeError, RuntimeError):
        return False
    return True


# The class of the fastest kernel, by output width, input width and bit length of the number of rows.
FASTEST_INT8: dict[tuple[int, ...], type] = {}


# The quantization method


class DynamicInt8Config(QuantizationConfigMixin):
    """Int8 weights with one scale per output, and activations that are quantized row by row at each call.

        model = AutoModelForSeq2SeqLM.from_pretrained(folder, quantization_config=DynamicInt8Config())

    The linear layers of the encoder and decoder and the output layer of language models are quantized. Embeddings,
    layer norms and classification heads keep float32. An output layer that is tied to an embedding is quantized again
    each time the model is loaded, so a saved folder contains the embedding only.

    The model cannot be trained, and its vocabulary cannot be resized, before `model.dequantize()`. `save_pretrained`
    and `from_pretrained` work as usual.
    """

    def __init__(self, **_: Any):
        self.quant_method = QUANTIZATION_METHOD


class DynamicInt8Quantizer(HfQuantizer):
    """Replaces linear layers by `Int8Linear` while transformers loads a model."""

    def update_dtype(self, dtype: torch.dtype) -> torch.dtype:  # noqa: ARG002
        """The dtype of the weights that are not quantized."""
        return torch.float32

    def _process_model_before_weight_loading(self, model: Any, **_: Any) -> None:
        if not hasattr(model, "int8_linear_class"):
            raise ValueError(
                f"quantization_config must be of another method for {type(model).__name__}, got {QUANTIZATION_METHOD}."
            )
        quantized = {module for stack in model.base_model.stacks for module in stack.modules()}
        if not is_output_tied(model):
            quantized.add(model.get_output_embeddings())
        dtype = torch.int8 if self.pre_quantized else None  # None: floating point, until it is quantized
        for name, layer in list(model.named_modules()):
            if layer in quantized and isinstance(layer, nn.Linear):
                has_bias = layer.bias is not None
                with torch.device("meta"):
                    int8_layer = model.int8_linear_class(layer.in_features, layer.out_features, has_bias, dtype)
                model.set_submodule(name, int8_layer)

    def _process_model_after_weight_loading(self, model: Any, **_: Any) -> None:
        model.requires_grad_(False)
        if is_output_tied(model):
            tied = model.get_output_embeddings()
            layer = model.int8_linear_class.from_linear(tied)
            if hasattr(tied, "_hf_hook"):  # the hook of a device map moves the inputs to the layer's device
                # Accelerate's function. Checkpoints contain this file and must not require Accelerate.
                from transformers.generation.utils import add_hook_to_module

                add_hook_to_module(layer, tied._hf_hook)
            model.set_output_embeddings(layer)
            model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)

    def dequantize(self, model: Any, dtype: Any = None) -> Any:
        """Replace the int8 layers by linear layers in `dtype`. A tied output layer is tied to the embedding again.

        Args:
            model: the model, which is changed.
            dtype: dtype of the new weights; the configuration's dtype when `None`.
        """
        for name, layer in list(model.named_modules()):
            if isinstance(layer, model.int8_linear_class):
                model.set_submodule(name, layer.to_linear())
        model.tie_weights()
        model.all_tied_weights_keys = model.get_expanded_tied_weights_keys(all_submodels=True)
        self.remove_quantization_config(model)
        if dtype is None:
            dtype = model.config.dtype
        if isinstance(dtype, str):  # save_pretrained sets config.dtype to a name
            dtype = getattr(torch, dtype)
        return model.to(dtype).requires_grad_(True)

    def param_needs_quantization(self, model: Any, param_name: str, **_: Any) -> bool:
        module = model.get_submodule(param_name.rpartition(".")[0])
        return not self.pre_quantized and param_name.endswith(".weight") and hasattr(module, "weight_scale")

    def get_quantize_ops(self) -> ConversionOps:
        return QuantizeRows()

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        """The weights to save, without the weights of a tied output layer."""
        weights = model.state_dict()
        if is_output_tied(model):
            head = next(name for name, module in model.named_modules() if module is model.get_output_embeddings())
            for name in ("weight", "weight_scale"):  # the bias is not tied
                del weights[f"{head}.{name}"]
        return weights, {}

    def is_serializable(self) -> bool:
        return True

    @property
    def is_trainable(self) -> bool:
        return False


class QuantizeRows(ConversionOps):
    """`quantize_rows` for a weight that transformers loads."""

    def convert(self, input_dict: dict[str, Any], full_layer_name: str = "", **_: Any) -> dict[str, Tensor]:
        """`{name: [weight]}` → the int8 weight, and its scale as `{name}_scale`."""
        ((weight,),) = input_dict.values()
        quantized, scale = quantize_rows(weight)
        return {full_layer_name: quantized, f"{full_layer_name}_scale": scale}


def is_output_tied(model: Any) -> bool:
    """Whether the weights of the output layer are those of an embedding."""
    return model.get_output_embeddings() is not None and bool(model.config.tie_word_embeddings)


# A checkpoint's copy of this file registers the same classes again, which transformers' decorators do not allow.
AUTO_QUANTIZATION_CONFIG_MAPPING[QUANTIZATION_METHOD] = DynamicInt8Config
AUTO_QUANTIZER_MAPPING[QUANTIZATION_METHOD] = DynamicInt8Quantizer
