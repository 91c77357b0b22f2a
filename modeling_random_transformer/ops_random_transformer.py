"""Numerics behind the modules: attention kernels, dropout, the loss, packed and int8 linear layers, functional layers.

Device-specific code and numerical optimizations are in this file. Docstrings give the PyTorch expression that a
function is equivalent to.
"""

import math
import timeit
import warnings
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, linear, scaled_dot_product_attention
from transformers import logging
from transformers.utils import output_capturing

logger = logging.get_logger(__name__)

FLOAT64_DEVICES = {"cpu", "cuda", "meta"}  # device types; MPS and most others have no float64
MALLOC_THRESHOLD_LIMIT = 2**25  # bytes: glibc's DEFAULT_MMAP_THRESHOLD_MAX
# Number of logits that the loss converts to float32 at a time. The value for CPUs fits into the cache.
LOSS_CHUNK_CPU = 2**19
LOSS_CHUNK_GPU = 2**26
MIN_PACKED_ELEMENTS = 2**17  # of a weight matrix; smaller ones are as fast in the unpacked layout
MIN_PACKED_ELEMENTS_HALF = 2**13  # of a weight matrix in half precision
MIN_STEPS_TO_PACK = 16  # decoding steps that amortize packing
MIN_MATMUL_KEY_ELEMENTS = 2**17  # of the keys; below, the fused kernel is at least as fast as two matrix products
INT8_DEVICE_WARNING = (
    "Layers with int8 weights multiply in floating point on devices other than CPUs: they save memory, not time."
)
NATIVE_MATMUL_CHECKS = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}


# Devices, transforms and memory


def float64_device(device: torch.device) -> torch.device:
    """The device itself if it supports float64, otherwise the CPU."""
    return device if device.type in FLOAT64_DEVICES else torch.device("cpu")


def can_read(padding_mask: Tensor | None) -> bool:
    """Whether transformers may omit an attention mask where there is no padding: reading that synchronizes a GPU.

    Flash and Flex attention read the padding in any case.
    """
    return padding_mask is None or padding_mask.device.type == "cpu"


def is_transformed() -> bool:
    """Whether the caller runs under `torch.compile`, `torch.export` or a `torch.func` transform.

    These require PyTorch's own operations: a custom autograd function or in-place random numbers would break the graph
    or have no batching rule.
    """
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MB of freed memory in this process, instead of returning it to the operating system.

    glibc returns freed memory above twice the size of the largest block that was mapped and freed (mallopt(3),
    M_TRIM_THRESHOLD). Without this block of almost 32 MB, the largest size that counts, the logits of a large batch
    are mapped again at every decoding step. The block is never written, so it needs no memory itself.
    """
    torch.empty(MALLOC_THRESHOLD_LIMIT - 2**16, dtype=torch.uint8)


def supports_native_matmul(dtype: torch.dtype) -> bool:
    """Whether this CPU has instructions for matrix products in `dtype`, according to oneDNN."""
    if dtype not in NATIVE_MATMUL_CHECKS:
        return dtype == torch.float32
    supported = getattr(torch.ops.mkldnn, NATIVE_MATMUL_CHECKS[dtype], None)
    return supported is not None and supported()


# Attention kernels


def select_attention(
    implementation: str, query: Tensor, key: Tensor, attention_mask: Any, is_causal: bool, is_cross_attention: bool
) -> tuple[str, Any]:
    """Select the attention implementation for these inputs, and convert the mask to its format.

    Usually, this is the requested implementation. Exceptions: SDPA replaces Flash attention for cross-attention with a
    padding mask, for which transformers would also unpad the queries. Eager attention replaces SDPA for empty batches,
    which transformers' SDPA wrapper cannot reshape, and for half-precision training on a CPU.
    """
    if is_cross_attention and isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
        implementation, attention_mask = "sdpa", attention_mask[:, None, None].bool()
    if implementation != "sdpa":
        return implementation, attention_mask
    empty = query.shape[0] == 0 or query.shape[2] == 0
    if not empty and not prefer_eager_attention_for_training(query, key):
        return implementation, attention_mask
    if attention_mask is None and is_causal:
        query_len, key_len = query.shape[2], key.shape[2]
        ones = torch.ones(query_len, key_len, dtype=torch.bool, device=query.device)
        attention_mask = ones.tril(key_len - query_len)
    return "eager", attention_mask


def prefer_eager_attention_for_training(query: Tensor, key: Tensor) -> bool:
    """Whether eager attention trains faster than the fused kernel: in half precision on a CPU, up to 15 times.

    Above 128 keys it would need too much memory. `torch.compile` and `torch.export` would specialize the graph to one
    side of the comparison, so the former always uses eager attention, and the latter never.
    """
    training = query.device.type == "cpu" and query.requires_grad and query.element_size() < 4
    if torch.compiler.is_compiling():
        return training and not torch.compiler.is_exporting()
    return training and key.shape[2] <= 128


def prefer_matmul_attention_for_decoding(keys: Tensor, mask: Tensor | None) -> bool:
    """Whether two matrix products decode faster than the fused kernel: on a CPU, up to five times for one query.

    They return NaN where an additive mask hides all keys, so the fused kernel remains for such masks.
    """
    return (
        keys.is_cpu and supports_native_matmul(keys.dtype) and (mask is None or not mask.isneginf().all(dim=-1).any())
    )


def fused_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """softmax(Q·Kᵀ · scale + mask)·V (paper 3.2.1) by PyTorch's kernel.

    `query` is `[batch, heads, query_len, d_k]`; returns `[batch, heads, query_len, d_v]`.
    """
    return scaled_dot_product_attention(query, keys, values, mask, scale=scale)


def matmul_attention(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float) -> Tensor:
    """`fused_attention` by two matrix products; for few keys, by the fused kernel, which is as fast."""
    if keys.numel() < MIN_MATMUL_KEY_ELEMENTS:
        return fused_attention(query, keys, values, mask, scale)
    if keys.element_size() < 4:
        keys = keys.contiguous()  # oneDNN's own copy would be slower
    scores = torch.bmm((query * scale).flatten(0, 1), keys.flatten(0, 1).transpose(1, 2)).unflatten(0, keys.shape[:2])
    weights = (scores if mask is None else scores.add_(mask)).softmax(dim=-1)
    return torch.bmm(weights.flatten(0, 1), values.flatten(0, 1)).unflatten(0, keys.shape[:2])


# Dropout


def dropout(states: Tensor, rate: float, training: bool) -> Tensor:
    """`torch.nn.functional.dropout` (paper 5.4). On a CPU it draws 16 random bits per element, which is 7 times faster.

    The rate is then rounded to a multiple of 2**-16.
    """
    if not training:
        return states
    threshold = round(rate * 2**16)
    if states.device.type != "cpu" or not 0 < threshold < 2**16 or is_transformed():
        return nn.functional.dropout(states, rate, training)
    bits = torch.empty(math.ceil(states.numel() / 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = bits[: states.numel()].view(states.shape) >= threshold - 2**15
    return states * kept.to(states.dtype).mul_(2**16 / (2**16 - threshold))


# The loss (paper 5.4)


def token_loss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,  # noqa: ARG001
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    **kwargs: Any,  # noqa: ARG001
) -> Tensor:
    """`smoothed_cross_entropy` without smoothing, with the arguments of transformers' loss functions.

    Raises:
        IndexError: on a CPU, for a label that is neither a token id nor `ignore_index`.
    """
    return smoothed_cross_entropy(logits, labels, 0.0, num_items_in_batch, ignore_index)


def smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    count: Tensor | int | None = None,
    ignore_index: int = -100,
    overwrite: bool = False,
) -> Tensor:
    """Cross-entropy in nats per token, with targets smoothed over the vocabulary.

    Equals `torch.nn.functional.cross_entropy(…, label_smoothing=smoothing)` on logits in float32, without its copies
    of the logits: a few rows at a time are converted to float32, and the gradient is computed together with the loss
    in the dtype of the logits. Under `torch.compile`, `torch.export` and `torch.func`, PyTorch's function is used.

    The loss and its gradient are 0 if all labels are ignored or `count` is 0.

    Args:
        logits: `[batch, target_len, vocab_size]`.
        labels: `[batch, target_len]`. Labels equal to `ignore_index` contribute neither to the loss nor to the count.
        smoothing: the probability that is spread evenly over the vocabulary, at least 0 and below 1.
        count: tokens to average over; the number of labels that are not ignored by default.
        ignore_index: the label of positions without a target.
        overwrite: store the gradient in the memory of the logits, for callers that no longer need them. Second
            derivatives are then not available.

    Raises:
        IndexError: on a CPU, for a label that is neither a token id nor `ignore_index`.
        RuntimeError: in a backward pass with `create_graph=True`, if `overwrite` is set.
    """
    logits, labels = logits.flatten(0, -2), labels.flatten().to(logits.device)
    weight = reciprocal((labels != ignore_index).sum() if count is None else count, logits)
    if is_transformed():
        return cross_entropy_sum(logits, labels, ignore_index, smoothing, weight)
    if labels.device.type == "cpu" and labels.numel():
        lowest, highest = labels.masked_fill(labels == ignore_index, 0).aminmax()
        if lowest < 0 or highest >= logits.shape[1]:
            raise IndexError(f"labels must be from 0 to {logits.shape[1] - 1}, got {lowest} to {highest}.")
    loss: Tensor = _CrossEntropySum.apply(logits, labels, ignore_index, smoothing, weight, overwrite)
    return loss


def label_log_probabilities(logits: Tensor, labels: Tensor, ignore_index: int = -100) -> Tensor:
    """The natural logarithm of each label's probability, and 0 for ignored labels: `[batch, target_len]`.

    Equals `logits.log_softmax(-1)` gathered at the labels, in float32 at least, without a copy of all logits: a few
    rows at a time are converted. It has no gradient.

    Args:
        logits: `[batch, target_len, vocab_size]`.
        labels: `[batch, target_len]`.
        ignore_index: the label of positions without a target.
    """
    dtype = torch.promote_types(logits.dtype, torch.float32)
    size = max(1, (LOSS_CHUNK_CPU if logits.device.type == "cpu" else LOSS_CHUNK_GPU) // logits.shape[-1])
    ignored = labels == ignore_index
    targets = labels.masked_fill(ignored, 0).reshape(-1, 1)
    scores = [
        rows.to(dtype).log_softmax(dim=1).gather(1, chunk)[:, 0]
        for rows, chunk in zip(logits.detach().flatten(0, -2).split(size), targets.split(size), strict=True)
    ]
    return torch.cat(scores).view(labels.shape).masked_fill(ignored, 0)


def reciprocal(count: Tensor | int, logits: Tensor) -> Tensor:
    """1 / `count`, and 0 for a count of 0, on the device of the logits and in float32 at least."""
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if not isinstance(count, Tensor):  # filling does not synchronize a GPU, copying to it does
        count = torch.full((), count, dtype=dtype, device=logits.device)
    count = count.to(logits.device, dtype)
    return count.reciprocal().masked_fill(count == 0, 0)


def cross_entropy_sum(logits: Tensor, labels: Tensor, ignore_index: int, smoothing: float, weight: Tensor) -> Tensor:
    """`weight` times the sum over the tokens of logits `[tokens, vocab_size]` and labels `[tokens]`, by PyTorch."""
    scores = logits.to(weight.dtype)
    return weight * cross_entropy(scores, labels, ignore_index=ignore_index, reduction="sum", label_smoothing=smoothing)


class _CrossEntropySum(torch.autograd.Function):
    """`cross_entropy_sum` with its gradient computed in the same pass."""

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, ignore_index: int, smoothing: float, weight: Tensor, overwrite: bool
    ) -> Tensor:
        ignored = labels == ignore_index
        targets = labels.masked_fill(ignored, 0)[:, None]
        forward_weight, backward_weight = weight, torch.ones_like(weight)
        if logits.dtype == torch.float16:
            # weight = mantissa · power of two. The power, which is exact in every dtype, is applied in the backward
            # pass, where float16 gradients are scaled by the loss scaler and do not underflow.
            forward_weight, exponent = torch.frexp(weight)
            backward_weight = torch.ldexp(backward_weight, exponent)
        factors = forward_weight.expand(len(labels)).masked_fill(ignored, 0)[:, None]
        gradient = None
        if ctx.needs_input_grad[0]:
            gradient = logits.detach() if overwrite else torch.empty_like(logits)
        loss = torch.zeros_like(weight)
        size = max(1, (LOSS_CHUNK_CPU if logits.device.type == "cpu" else LOSS_CHUNK_GPU) // logits.shape[1])
        for chunk in (slice(start, start + size) for start in range(0, len(logits), size)):
            scores = logits[chunk].to(weight.dtype).log_softmax(dim=1)
            scores_of_targets = scores.gather(1, targets[chunk])[:, 0]
            if smoothing:  # a score of -inf times 0 would be NaN
                scores_of_targets = (1 - smoothing) * scores_of_targets + smoothing * scores.mean(dim=1)
            loss -= scores_of_targets.masked_fill(ignored[chunk], 0).sum()
            if gradient is not None:  # probability - target, for every score
                scores = torch.exp(scores, out=gradient[chunk] if gradient.dtype == scores.dtype else scores)
                if smoothing:
                    scores.sub_(smoothing / logits.shape[1])
                scores.scatter_add_(1, targets[chunk], scores.new_full((len(scores), 1), smoothing - 1))
                gradient[chunk] = scores.mul_(factors[chunk])
        # Second derivatives need the logits. They are as large as the gradient, but are still in memory at this point.
        ctx.save_for_backward(gradient, backward_weight, None if overwrite else logits, labels, weight)
        ctx.ignore_index, ctx.smoothing = ignore_index, smoothing
        return loss * weight

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradient, backward_weight, logits, labels, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            if logits is None:
                raise RuntimeError("overwrite must be False for a backward pass with create_graph=True, got True.")
            loss = cross_entropy_sum(logits, labels, ctx.ignore_index, ctx.smoothing, weight)
            gradient = torch.autograd.grad(loss, logits, scale, create_graph=True)[0]
        else:
            gradient = _scale(gradient, (scale * backward_weight).to(gradient.dtype))
        return gradient, None, None, None, None, None


def _scale(gradient: Tensor, scale: Tensor) -> Tensor:
    """`gradient * scale`, in the memory of the gradient unless another backward pass may need it."""
    if is_transformed() or torch._C._autograd._get_current_graph_task_keep_graph():
        return gradient * scale
    if scale.device.type == "cpu" and scale == 1:  # a comparison would synchronize a GPU
        return gradient
    return gradient.mul_(scale)


# Packed linear layers: weights in oneDNN's blocked layout, for the few rows of a decoding step


class PackedLinear:
    """One or more linear layers as one matrix product, with weights copied into oneDNN's blocked layout.

    `torch.nn.functional.linear` uses the unpacked layout, which dominates its time for a few rows.
    Packing takes about as long as ten products.

    Args:
        layers: layers with the same input; their outputs are concatenated in this order.
        batch_size: rows of a typical input.
    """

    def __init__(self, layers: tuple[nn.Linear, ...], batch_size: int):
        weights: list[Tensor] = [layer.weight for layer in layers]
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        weight = weights[0] if len(weights) == 1 else torch.cat(weights)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, batch_size)
        self.bias = torch.cat(biases) if biases else None

    def __call__(self, states: Tensor) -> Tensor:
        """`[…, input width]` → `[…, sum of the output widths]`."""
        return torch.ops.mkldnn._linear_pointwise(states, self.weight, self.bias, "none", [], "")

    def add_residual(self, residual: Tensor, states: Tensor) -> Tensor:
        """`residual + self(states)`, rounded once."""
        return torch.ops.mkldnn._linear_pointwise.binary(states, residual, self.weight, self.bias, "add")


def can_pack(*layers: Any) -> bool:
    """Whether these are unmodified linear layers of one dtype that oneDNN multiplies faster when packed."""
    unmodified = all(is_unmodified(layer, nn.Linear) and is_plain(layer.weight) for layer in layers)
    if not unmodified or torch.is_grad_enabled():
        return False
    weight = layers[0].weight
    elements = sum(layer.weight.numel() for layer in layers)
    alike = len({(layer.bias is None, layer.weight.device, layer.weight.dtype) for layer in layers}) == 1
    large = weight.is_cpu and elements >= (
        MIN_PACKED_ELEMENTS if weight.element_size() > 2 else MIN_PACKED_ELEMENTS_HALF
    )
    return alike and large and mkldnn_packing_available() and supports_native_matmul(weight.dtype)


def mkldnn_packing_available() -> bool:
    """Whether oneDNN and its packing operations are available and enabled (see `torch.backends.mkldnn.flags`)."""
    exist = (hasattr(torch.ops.mkldnn, name) for name in ("_reorder_linear_weight", "_linear_pointwise"))
    return torch.backends.mkldnn.is_available() and bool(torch.backends.mkldnn.enabled) and all(exist)


# Int8 linear layers: int8 weights, and activations that are quantized row by row at each call


class Int8Linear(nn.Module):
    """A linear layer with int8 weights `W`, one scale `t` per output, and dynamically quantized activations.

    `y = s · (round(x / s) · Wᵀ) ⊙ t + b` with `s = max|x| / 127` for each row `x` (63 instead of 127 on CPUs
    without VNNI). Sums of int8 products are exact and all kernels round alike, so a row's result depends neither on
    the other rows nor on the kernel. Layers with fewer than `MIN_PACKED_ELEMENTS` weights, devices other than CPUs
    and CPUs without kernels multiply in floating point, with `W ⊙ t`.

    The weights cannot be trained. They may be changed by `load_state_dict`, `to` and assignment, but not in place.

    Args:
        in_features: width of the inputs.
        out_features: width of the outputs.
        bias: add a bias.
        dtype: dtype of `weight`; a floating-point dtype while transformers loads weights that it quantizes.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool, dtype: torch.dtype | None = torch.int8):
        super().__init__()
        self.products: dict[tuple[Int8Linear, ...], PackedInt8Linear] = {}  # of this layer, alone and with others
        self.in_features, self.out_features = in_features, out_features
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
            if not self.weight.is_cpu and not is_transformed():
                logger.warning_once(INT8_DEVICE_WARNING)
            return linear(states, self.dequantized_weight(), self.bias)
        return packed(states) if states.dim() > 1 else packed(states[None])[0]

    def dequantized_weight(self) -> Tensor:
        """The weights in the dtype of the scales, `[out_features, in_features]`."""
        return self.weight.to(self.weight_scale.dtype) * self.weight_scale[:, None]

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"

    def _apply(self, *args: Any, **kwargs: Any) -> Any:  # of .to(), .cuda(), .float() …
        self.products.clear()
        return super()._apply(*args, **kwargs)

    def register_parameter(self, *args: Any, **kwargs: Any) -> None:  # of assignments
        self.products.clear()
        super().register_parameter(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.products.clear()
        super()._load_from_state_dict(*args, **kwargs)

    def __getstate__(self) -> dict[str, Any]:  # copies and pickles without the packed weights
        return {**vars(self), "products": {}}


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Weights `[outputs, inputs]` → int8 weights and one float32 scale per output, `[outputs]`."""
    weight = weight.detach().float()
    scale = weight.abs().amax(dim=1) / 127
    return (weight / scale.masked_fill(scale == 0, 1)[:, None]).round().to(torch.int8), scale


class PackedInt8Linear:
    """One or more `Int8Linear` layers as one matrix product, with weights packed for the fastest kernel.

    The first product for each size measures which kernel is fastest. Results do not depend on the choice.

    Args:
        layers: layers with the same input; their outputs are concatenated in this order.
    """

    def __init__(self, layers: tuple[Int8Linear, ...]):
        self.weight = torch.cat(tuple(layer.weight for layer in layers)) if len(layers) > 1 else layers[0].weight
        self.scale = torch.cat(tuple(layer.weight_scale for layer in layers))
        biases: list[Tensor] = [layer.bias for layer in layers if layer.bias is not None]
        self.bias = torch.cat(biases) if biases else None
        self.largest, _ = int8_kernels()
        self.inverse_largest = torch.tensor(1 / self.largest)  # multiplying by a Python float would take twice the time
        self.kernels: dict[type, Any] = {}  # with packed weights

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
        states = states.float()  # of autocast
        scale = states.abs().amax(dim=-1, keepdim=True).mul_(self.inverse_largest)
        # A row of zeros becomes NaN, for which the kernels use some integer. It is multiplied by the scale, 0.
        return self.fastest_kernel(states)(states / scale), scale

    def fastest_kernel(self, states: Tensor) -> Any:
        """The fastest kernel for as many rows as `states` has, measured once for each power of two."""
        _, kernel_classes = int8_kernels()
        size = (*self.weight.shape, (states.numel() // states.shape[-1]).bit_length())
        if size not in FASTEST_INT8:
            seconds = [min(timeit.repeat(partial(self.kernel(kernel), states), number=1)) for kernel in kernel_classes]
            FASTEST_INT8[size] = kernel_classes[seconds.index(min(seconds))]
        return self.kernel(FASTEST_INT8[size])

    def kernel(self, kernel_class: type) -> Any:
        """The kernel of this class, which packs the weights at the first use."""
        if kernel_class not in self.kernels:
            self.kernels[kernel_class] = kernel_class(self.weight, self.scale, self.largest)
        return self.kernels[kernel_class]


def packed_int8_linear(layers: tuple[Int8Linear, ...]) -> PackedInt8Linear | None:
    """The layers as one product, cached by each layer; `None` if one of them has to multiply in floating point.

    That depends on the layer alone, so that fused and single layers compute the same.
    """
    elements = min(layer.weight.numel() for layer in layers)
    scale = layers[0].weight_scale
    suitable = scale.is_cpu and scale.dtype == torch.float32 and elements >= MIN_PACKED_ELEMENTS
    if not suitable or is_transformed() or not int8_kernels()[1]:
        return None
    packed = layers[0].products.get(layers)
    if packed is None or any(layer.products.get(layers) is not packed for layer in layers[1:]):  # weights have changed
        packed = PackedInt8Linear(layers)
        for layer in layers:
            layer.products[layers] = packed
    return packed


class FbgemmInt8:
    """`round(states) · Wᵀ ⊙ t` by FBGEMM, which rounds the activations in the same call: fastest for a few rows.

    Args:
        weight: int8 weights, `[outputs, inputs]`.
        scale: one scale per output, `[outputs]`.
        largest: the largest absolute value of the activations; they are shifted by `largest + 1` to be unsigned.
    """

    def __init__(self, weight: Tensor, scale: Tensor, largest: int):
        self.zero_point = largest + 1
        with warnings.catch_warnings():  # PyTorch deprecates quantized tensors; oneDNN works without them
            warnings.simplefilter("ignore", UserWarning)
            zeros = torch.zeros(len(scale), dtype=torch.long)
            quantized = torch._make_per_channel_quantized_tensor(weight, scale.double(), zeros, 0)
        self.weight = torch.ops.quantized.linear_prepack(quantized, None)

    def __call__(self, states: Tensor) -> Tensor:
        """`[rows, inputs]` → `[rows, outputs]`."""
        multiply = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32
        return multiply(states, 1.0, self.zero_point, self.weight)


class OneDnnInt8:
    """`FbgemmInt8` by oneDNN, with the same arguments: fastest for many rows on CPUs with AMX."""

    def __init__(self, weight: Tensor, scale: Tensor, largest: int):
        self.zero_point = largest + 1
        zeros = torch.zeros(len(scale), dtype=torch.long)
        self.weight = torch.ops.onednn.qlinear_prepack(weight, None), scale, zeros
        # Bias, scale, zero point and dtype of the output; activation, its arguments and its variant.
        self.output: tuple[Any, ...] = (None, 1.0, 0, torch.float32, "none", [], "")

    def __call__(self, states: Tensor) -> Tensor:
        """`[rows, inputs]` → `[rows, outputs]`."""
        unsigned = (states + self.zero_point).round_().to(torch.uint8)  # shifted first, as FBGEMM does
        return torch.ops.onednn.qlinear_pointwise(unsigned, 1.0, self.zero_point, *self.weight, *self.output)


@lru_cache
def int8_kernels() -> tuple[int, tuple[type, ...]]:
    """The largest quantized activation, and the kernels whose results are exact up to this activation.

    CPUs without VNNI saturate sums of two products, unless the activations have 7 bits. Other CPUs and future versions
    of PyTorch may lack an operator. Without a kernel, `Int8Linear` multiplies in floating point.
    """
    for largest in (127, 63):
        kernels = tuple(kernel for kernel in (FbgemmInt8, OneDnnInt8) if is_exact(kernel, largest))
        if kernels:
            return largest, kernels
    return 127, ()


def is_exact(kernel: type, largest: int) -> bool:
    """Whether the kernel is available, and its result is right for the largest values."""
    weight, scale = torch.tensor([[127], [-127]], dtype=torch.int8).repeat(8, 64), torch.ones(16)
    try:
        multiply = kernel(weight, scale, largest)
        results = [multiply(torch.full((rows, 64), float(largest))) for rows in (1, 16)]
    except (AttributeError, RuntimeError):
        return False
    return all(bool((result == weight[:, 0] * 64.0 * largest).all()) for result in results)


# The class of the fastest kernel, by output width, input width and bit length of the number of rows.
FASTEST_INT8: dict[tuple[int, ...], type] = {}


# Detection of modified modules, whose `__call__` cannot be replaced by a function


# To detect a class whose `forward` was replaced.
ORIGINAL_FORWARD = {kind: kind.forward for kind in (nn.Linear, nn.LayerNorm, Int8Linear)}


def is_unmodified(module: Any, kind: type[nn.Module]) -> bool:
    """Whether the module computes what PyTorch's class `kind` does: no subclass, no hook, no replaced `forward`."""
    return type(module) is kind and kind.forward is ORIGINAL_FORWARD[kind] and not has_hooks(module)


def is_plain(weight: Tensor) -> bool:
    """Whether the weight is neither sharded nor quantized, and products with it keep its dtype."""
    return type(weight.data) is Tensor and not torch.is_autocast_enabled(weight.device.type)


def has_hooks(module: nn.Module) -> bool:
    """Whether calling this module runs more than the `forward` of its class: a hook, or a replaced or compiled one."""
    return (
        bool(forward_hooks(module))
        or "forward" in vars(module)
        or module._compiled_call_impl is not None
        or nn.modules.module._has_any_global_hook()
    )


def forward_hooks(module: nn.Module) -> list[Any]:
    """The forward hooks of a module, without those of transformers' `capture_outputs`.

    These stay installed after the first call with `output_attentions` or `output_hidden_states`, and have no effect
    while neither is requested.
    """
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return [hook for hook in hooks if getattr(hook, "__module__", None) != output_capturing.__name__]


# Functional layers: for the few rows of a decoding step, the overhead of `nn.Module.__call__` dominates the time


def functional_layer(module: Any, batch_size: int = 0) -> Callable[[Tensor], Tensor]:
    """Convert a linear layer or a layer norm to a plain function of its input. Other modules are called as modules.

    Args:
        module: the layer.
        batch_size: pack the weights for this number of rows; 0 keeps the unpacked layout.
    """
    if packed := packed_linear((module,), batch_size):
        return packed
    if parameters := float_parameters(module):
        return lambda states: linear(states, *parameters)
    if is_unmodified(module, nn.LayerNorm):
        shape, scale, shift, eps = module.normalized_shape, module.weight, module.bias, module.eps
        return lambda states: torch.layer_norm(states, shape, scale, shift, eps)
    return module_fallback(module)


def fused_linear(modules: tuple[Any, ...], batch_size: int = 0) -> Callable[[Tensor], tuple[Tensor, ...]]:
    """The outputs of several layers for the same input, by one product if their weights can be packed."""
    if packed := packed_linear(modules, batch_size):
        widths = [len(module.weight) for module in modules]
        return lambda states: packed(states).split(widths, dim=-1)
    layers = [functional_layer(module, batch_size) for module in modules]
    return lambda states: tuple(layer(states) for layer in layers)


def linear_add_residual(module: Any, batch_size: int = 0) -> Callable[[Tensor, Tensor], Tensor]:
    """`residual + module(states)`; for an unmodified linear layer one product that accumulates into residual + bias."""
    if packed := packed_linear((module,), batch_size):
        return packed.add_residual
    parameters = float_parameters(module)
    if parameters is None or not is_plain(parameters[0]):
        call = module_fallback(module)
        return lambda residual, states: residual + call(states)
    weight, bias = parameters
    transposed, shift = weight.t(), 0 if bias is None else bias
    return lambda residual, states: (residual + shift).addmm_(states, transposed)


def packed_linear(modules: tuple[Any, ...], batch_size: int) -> PackedLinear | PackedInt8Linear | None:
    """Linear layers with the same input as one product with packed weights; `None` if they cannot be packed."""
    if all(is_unmodified(module, Int8Linear) for module in modules):
        return packed_int8_linear(modules)
    return PackedLinear(modules, batch_size) if batch_size and can_pack(*modules) else None


def float_parameters(module: Any) -> tuple[Tensor, Tensor | None] | None:
    """The weight and the bias of an unmodified linear layer, dequantized if needed; `None` for other modules."""
    if is_unmodified(module, Int8Linear):
        return module.dequantized_weight(), module.bias
    return (module.weight, module.bias) if is_unmodified(module, nn.Linear) else None


def module_fallback(module: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """Call the module itself, for adapters, hooks and other classes. `[batch, d]` is passed as `[batch, 1, d]`."""
    return lambda states: module(states[:, None])[:, 0] if states.dim() == 2 else module(states)
