"""Numerics behind the modules: attention kernels, dropout, the loss, packed linear layers.

Device-specific code and numerical optimizations are in this file. Docstrings give the PyTorch expression that a
function is equivalent to.
"""

import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers.utils import output_capturing

FLOAT64_DEVICES = {"cpu", "cuda", "meta"}  # device types; MPS and most others have no float64
IGNORE_INDEX = -100  # the label of positions that do not count
MALLOC_THRESHOLD_LIMIT = 2**25  # bytes: glibc's DEFAULT_MMAP_THRESHOLD_MAX
# Number of logits that the loss converts to float32 at a time. The value for CPUs fits into the cache.
LOSS_CHUNK_CPU = 2**19
LOSS_CHUNK_GPU = 2**26
MIN_PACKED_ELEMENTS = 2**17  # weight matrices below this size are as fast in the unpacked layout
MIN_PACKED_ELEMENTS_HALF = 2**13  # the same limit in half precision
MIN_STEPS_TO_PACK = 16  # decoding steps that amortize packing
# With fewer elements in the keys, the fused kernel is at least as fast as two matrix products.
MIN_MATMUL_KEY_ELEMENTS = 2**17
NATIVE_MATMUL_CHECKS = {torch.bfloat16: "_is_mkldnn_bf16_supported", torch.float16: "_is_mkldnn_fp16_supported"}


# Devices, transforms and memory


def float64_device(device: torch.device) -> torch.device:
    """The device itself if it supports float64, otherwise the CPU."""
    return device if device.type in FLOAT64_DEVICES else torch.device("cpu")


def may_omit_mask(padding_mask: Tensor | None) -> bool:
    """Whether transformers may omit a mask without padding. On a GPU, looking for padding would synchronize.

    Flash and Flex attention read the padding in any case.
    """
    return not isinstance(padding_mask, Tensor) or padding_mask.is_cpu


def float32_precisions() -> tuple[str, str]:
    """How a GPU and a CPU compute products in float32: exactly (`"none"`, `"ieee"`), or as `"tf32"` or `"bf16"`.

    `torch.get_float32_matmul_precision()` raises an error if the two differ, for example with the Trainer's `tf32`.
    """
    cpu_backend: Any = torch.backends.mkldnn
    return torch.backends.cuda.matmul.fp32_precision, cpu_backend.matmul.fp32_precision


def is_traced() -> bool:
    """Whether the caller runs under `torch.compile`, `torch.export` or a `torch.func` transform.

    Under a transform, only PyTorch's own operations can be used. A custom autograd function or in-place random numbers
    would break the graph or have no batching rule.
    """
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


@lru_cache(maxsize=1)
def keep_freed_memory() -> None:
    """Let glibc keep up to 64 MB of freed memory in this process, instead of returning it to the operating system.

    glibc returns freed memory above twice the size of the largest block that was mapped and freed (mallopt(3),
    M_TRIM_THRESHOLD). Only blocks of less than 32 MB count. This function maps and frees such a block. Without it, the
    logits of a large batch are mapped again at every decoding step. The block is never written, so it takes no memory.
    """
    torch.empty(MALLOC_THRESHOLD_LIMIT - 2**16, dtype=torch.uint8)


def trailing_true(mask: Tensor) -> Tensor:
    """The trailing run of true values in each row of a mask `[rows, length]`, as a mask."""
    return mask.flip(1).long().cumprod(dim=1).flip(1).bool()


def supports_native_matmul(dtype: torch.dtype) -> bool:
    """Whether this CPU has instructions for matrix products in `dtype`, according to oneDNN."""
    if dtype == torch.float32:
        return True
    check = getattr(torch.ops.mkldnn, NATIVE_MATMUL_CHECKS.get(dtype, ""), None)
    return check is not None and check()


# Attention kernels


def masked_softmax(scores: Tensor, mask: Tensor | None) -> Tensor:
    """softmax(scores + mask), `[batch, heads, query_len, key_len]`, in float32 at least.

    In half precision, the dtype's minimum plus a negative score would overflow to -inf. The mask is boolean, or 0 for
    visible keys and its dtype's minimum for hidden ones. Hidden keys have a weight of exactly 0, even if all keys of a
    query are hidden.
    """
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    if mask is None:
        return scores.softmax(dim=-1)
    if mask.dtype == torch.bool:
        hidden = ~mask
        scores = scores.masked_fill(hidden, torch.finfo(scores.dtype).min)
    else:
        hidden = mask <= torch.finfo(mask.dtype).min
        scores = scores + mask
    return scores.softmax(dim=-1).masked_fill(hidden, 0.0)


def select_attention(
    implementation: str,
    query: Tensor,
    key: Tensor,
    attention_mask: Any,
    is_causal: bool,
    is_cross_attention: bool,
) -> tuple[str, Any]:
    """Select the attention implementation for these inputs, and convert the mask to its format.

    Usually, this is the requested implementation. There are three exceptions. SDPA replaces Flash attention for
    cross-attention with a padding mask, since transformers would also unpad the queries. Eager attention replaces SDPA
    for empty batches, which transformers' SDPA wrapper cannot reshape. It also does so for half-precision training on
    a CPU.

    Args:
        implementation: the requested implementation.
        query: `[sources, heads, query_len, d_k]`.
        key: `[sources, heads, key_len, d_k]`.
        attention_mask: the mask in the format of `implementation`, `[sources, 1, query_len, key_len]` for SDPA.
        is_causal: whether a mask of `None` means causal attention.
        is_cross_attention: whether the keys are those of the source.
    """
    if is_cross_attention and isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
        implementation = "sdpa"
        attention_mask = attention_mask[:, None, None].bool()
    is_empty = query.shape[0] == 0 or query.shape[2] == 0
    if implementation != "sdpa" or not (is_empty or prefers_eager_for_training(query, key)):
        return implementation, attention_mask
    if attention_mask is None and is_causal:
        query_len, key_len = query.shape[2], key.shape[2]
        visible = torch.ones(query_len, key_len, dtype=torch.bool, device=query.device)
        attention_mask = visible.tril(key_len - query_len)
    return "eager", attention_mask


def prefers_eager_for_training(query: Tensor, key: Tensor) -> bool:
    """Whether eager attention trains faster than the fused kernel, by up to 15 times in half precision on a CPU.

    Above 128 keys, eager attention would need too much memory. A comparison of lengths would specialize a graph.
    Therefore `torch.compile` always uses eager attention, and `torch.export` never does.
    """
    trains_on_cpu = query.requires_grad and query.device.type == "cpu"
    if not trains_on_cpu or query.element_size() >= 4:
        return False
    if torch.compiler.is_compiling():
        return not torch.compiler.is_exporting()
    return key.shape[2] <= 128


def prefers_matmul_for_decoding(keys: Tensor, mask: Tensor | None) -> bool:
    """Whether two matrix products decode faster than the fused kernel, by up to five times for one query on a CPU.

    The products return NaN if an additive mask hides all keys, so the fused kernel is used with such masks.
    """
    if not keys.is_cpu or not supports_native_matmul(keys.dtype):
        return False
    return mask is None or not mask.isneginf().all(dim=-1).any()


def matmul_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    mask: Tensor | None,
    scale: float,
) -> Tensor:
    """softmax(Q·Kᵀ · scale + mask)·V (paper 3.2.1), as by `scaled_dot_product_attention`.

    It computes two matrix products. For few keys, it calls the fused kernel, which is as fast. `query` is
    `[batch, heads, query_len, d_k]`. Returns `[batch, heads, query_len, d_v]`.
    """
    if keys.numel() < MIN_MATMUL_KEY_ELEMENTS:
        return scaled_dot_product_attention(query, keys, values, mask, scale=scale)
    if keys.element_size() < 4:
        keys = keys.contiguous()  # oneDNN's own copy would be slower
    batch_and_heads = keys.shape[:2]
    scaled_query = (query * scale).flatten(0, 1)
    transposed_keys = keys.flatten(0, 1).transpose(1, 2)
    scores = torch.bmm(scaled_query, transposed_keys).unflatten(0, batch_and_heads)
    if mask is not None:
        scores += mask
    weights = scores.softmax(dim=-1).flatten(0, 1)
    return torch.bmm(weights, values.flatten(0, 1)).unflatten(0, batch_and_heads)


# Dropout


def fast_dropout(states: Tensor, rate: float, training: bool) -> Tensor:
    """`torch.nn.functional.dropout` (paper 5.4) for states of any shape.

    On a CPU, it draws 16 random bits per element, which is 7 times faster. The rate is then rounded to a multiple of
    2**-16.
    """
    if not training:
        return states
    limit = 2**16
    dropped = round(rate * limit)  # how many of the 16-bit numbers drop an element
    if states.device.type != "cpu" or is_traced() or not 0 < dropped < limit:
        return nn.functional.dropout(states, rate)
    count = states.numel()
    words = torch.empty(math.ceil(count / 4), dtype=torch.int64).random_(-(2**63), None)
    numbers = words.view(torch.int16)[:count].view(states.shape)
    kept = numbers >= dropped - limit // 2
    scale = limit / (limit - dropped)
    return states * kept.to(states.dtype).mul_(scale)


# The loss (paper 5.4)


def smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    smoothing: float = 0.0,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = IGNORE_INDEX,
    overwrite: bool = False,
    **_: Any,
) -> Tensor:
    """Cross-entropy in nats per token, with targets smoothed over the vocabulary.

    It has the signature of transformers' loss functions and ignores their other arguments.

    The result equals `torch.nn.functional.cross_entropy(…, label_smoothing=smoothing)` on logits in float32, but the
    logits are not copied. A few rows at a time are converted to float32, and the gradient is computed together with
    the loss in the dtype of the logits. Under `torch.compile`, `torch.export` and `torch.func`, PyTorch's function is
    used.

    The loss and its gradient are 0 if all labels are ignored or `num_items_in_batch` is 0.

    Args:
        logits: `[batch, target_len, vocab_size]`.
        labels: `[batch, target_len]`. Labels equal to `ignore_index` contribute neither to the loss nor to the count.
        smoothing: the probability that is spread evenly over the vocabulary, at least 0 and below 1.
        num_items_in_batch: number of tokens to average over. The default is the number of labels that are not ignored.
        ignore_index: the label of positions without a target.
        overwrite: store the gradient in the memory of the logits, for callers that no longer need them.

    Raises:
        IndexError: on a CPU, for a label that is neither a token id nor `ignore_index`.
        RuntimeError: in a backward pass with `create_graph=True`. For second derivatives, use PyTorch's function or
            `torch.func`.
    """
    logits = logits.flatten(0, -2)
    labels = labels.flatten().to(logits.device)
    ignored = labels == ignore_index
    targets = labels.masked_fill(ignored, 0)
    if num_items_in_batch is None:
        num_items_in_batch = (~ignored).sum()
    weight = token_weight(num_items_in_batch, like=logits)
    if is_traced():
        losses = cross_entropy(logits.to(weight.dtype), targets, reduction="none", label_smoothing=smoothing)
        return weight * losses.masked_fill(ignored, 0).sum()
    if targets.is_cpu and targets.numel():
        lowest, highest = targets.aminmax()
        if lowest < 0 or highest >= logits.shape[1]:
            raise IndexError(f"labels must be from 0 to {logits.shape[1] - 1}, got {lowest} to {highest}.")
    return CrossEntropySum.apply(logits, targets[:, None], ignored, smoothing, weight, overwrite)


def row_chunks(logits: Tensor) -> list[slice]:
    """The rows of logits `[rows, vocab_size]` that are converted to float32 at a time."""
    elements = LOSS_CHUNK_CPU if logits.is_cpu else LOSS_CHUNK_GPU
    size = max(1, elements // logits.shape[1])
    starts = range(0, max(len(logits), 1), size)
    return [slice(start, start + size) for start in starts]


def token_weight(count: Tensor | int, like: Tensor) -> Tensor:
    """1 / `count`, and 0 for a count of 0, on the device of `like` and in its dtype, but in float32 at least."""
    dtype = torch.promote_types(like.dtype, torch.float32)
    if isinstance(count, Tensor):
        count = count.to(like.device, dtype)
    else:  # filling does not synchronize a GPU, copying to it does
        count = torch.full((), count, dtype=dtype, device=like.device)
    return count.reciprocal().masked_fill(count == 0, 0)


class CrossEntropySum(torch.autograd.Function):
    """`weight` times the sum of the tokens' losses, with its gradient computed in the same pass.

    Logits are `[tokens, vocab_size]`, targets `[tokens, 1]`, with any id for ignored tokens, `[tokens]`.
    """

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        targets: Tensor,
        ignored: Tensor,
        smoothing: float,
        weight: Tensor,
        overwrite: bool,
    ) -> Tensor:
        forward_weight = weight
        backward_weight = torch.ones_like(weight)
        if logits.dtype == torch.float16:
            # weight = mantissa · power of two. The power, which is exact in every dtype, is applied in the backward
            # pass, where float16 gradients are scaled by the loss scaler and do not underflow.
            forward_weight, exponent = torch.frexp(weight)
            backward_weight = torch.ldexp(backward_weight, exponent)
        factors = forward_weight.expand(len(targets)).masked_fill(ignored, 0)
        gradient = None
        if ctx.needs_input_grad[0]:
            gradient = logits.detach() if overwrite else torch.empty_like(logits)
        loss = torch.zeros_like(weight)
        for chunk in row_chunks(logits):
            log_probabilities = logits[chunk].to(weight.dtype).log_softmax(dim=1)
            target_scores = log_probabilities.gather(1, targets[chunk])[:, 0]
            if smoothing:  # -inf times 0 would be NaN
                target_scores = (1 - smoothing) * target_scores + smoothing * log_probabilities.mean(dim=1)
            loss -= target_scores.masked_fill(ignored[chunk], 0).sum()
            if gradient is not None:
                out = gradient[chunk] if gradient.dtype == weight.dtype else log_probabilities
                write_logit_gradient(log_probabilities, targets[chunk], smoothing, out)
                gradient[chunk] = out.mul_(factors[chunk, None])
        ctx.save_for_backward(gradient, backward_weight)
        return loss * weight

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError("create_graph must be False for this loss, which has no second derivative, got True.")
        gradient, backward_weight = ctx.saved_tensors
        scale = (scale * backward_weight).to(gradient.dtype)
        if is_traced() or torch._C._autograd._get_current_graph_task_keep_graph():
            gradient = gradient * scale  # another backward pass may need the gradient
        elif not scale.is_cpu or scale != 1:  # a comparison would synchronize a GPU
            gradient.mul_(scale)
        return gradient, None, None, None, None, None


def write_logit_gradient(log_probabilities: Tensor, targets: Tensor, smoothing: float, out: Tensor) -> None:
    """Write the gradient of each token's loss with respect to its logits: probability - smoothed target.

    Args:
        log_probabilities: `[rows, vocab_size]`; `out` may be the same tensor.
        targets: `[rows, 1]`.
        smoothing: see `smoothed_cross_entropy`.
        out: the gradient, `[rows, vocab_size]`.
    """
    torch.exp(log_probabilities, out=out)
    if smoothing:
        out.sub_(smoothing / out.shape[1])
    out.scatter_add_(1, targets, out.new_full(targets.shape, smoothing - 1))


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
        weight, self.bias = joined_parameters(layers)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(weight, batch_size)

    def __call__(self, states: Tensor) -> Tensor:
        """`[…, input width]` → `[…, sum of the output widths]`."""
        return torch.ops.mkldnn._linear_pointwise(states, self.weight, self.bias, "none", [], "")

    def add_residual(self, residual: Tensor, states: Tensor) -> Tensor:
        """`residual + self(states)`, rounded once."""
        return torch.ops.mkldnn._linear_pointwise.binary(states, residual, self.weight, self.bias, "add")


def joined_parameters(layers: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
    """The concatenated weights and biases of linear layers. The parameters of a single layer are not copied."""
    first = layers[0]
    if len(layers) == 1:
        return first.weight, first.bias
    weight = torch.cat([layer.weight for layer in layers])
    if first.bias is None:
        return weight, None
    return weight, torch.cat([layer.bias for layer in layers])


def can_pack(*layers: Any) -> bool:
    """Whether all layers are unmodified linear layers of one dtype that oneDNN multiplies faster when packed."""
    if torch.is_grad_enabled():
        return False
    first = layers[0]
    elements = 0
    for layer in layers:
        if not is_unmodified(layer, nn.Linear) or not is_plain(layer.weight):
            return False
        if (layer.bias is None) != (first.bias is None):
            return False
        if layer.weight.dtype != first.weight.dtype:
            return False
        elements += layer.weight.numel()
    minimum = MIN_PACKED_ELEMENTS if first.weight.element_size() > 2 else MIN_PACKED_ELEMENTS_HALF
    if elements < minimum or not first.weight.is_cpu:
        return False
    return supports_native_matmul(first.weight.dtype) and mkldnn_packing_available()


def mkldnn_packing_available() -> bool:
    """Whether oneDNN and its packing operations are available and enabled (see `torch.backends.mkldnn.flags`)."""
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    operations = torch.ops.mkldnn
    return hasattr(operations, "_reorder_linear_weight") and hasattr(operations, "_linear_pointwise")


# Detection of modified modules, whose `__call__` cannot be replaced by a function, and of changed weights


def is_unmodified(module: Any, kind: type[nn.Module]) -> bool:
    """Whether the module computes exactly the class `kind`: no subclass, no hook, no replaced `forward`."""
    if type(module) is not kind:
        return False
    return not has_modified_call(module)


def is_plain(weight: Tensor) -> bool:
    """Whether the weight is neither sharded, quantized nor sparse, and products with it keep its dtype."""
    if type(weight.data) is not Tensor or weight.layout != torch.strided:
        return False
    return not torch.is_autocast_enabled(weight.device.type)


def has_modified_call(module: nn.Module) -> bool:
    """Whether a call of this module runs hooks, or a replaced or compiled `forward`."""
    if "forward" in vars(module) or module._compiled_call_impl is not None:
        return True
    return bool(forward_hooks(module)) or has_global_hooks()


def has_global_hooks() -> bool:
    """Whether hooks are registered for all modules of the process."""
    return nn.modules.module._has_any_global_hook()


def forward_hooks(module: nn.Module) -> list[Any]:
    """The forward hooks of a module, without those of transformers' `capture_outputs`.

    The hooks of `capture_outputs` stay installed after the first call with `output_attentions` or
    `output_hidden_states`. They have no effect while neither output is requested.
    """
    hooks = (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
    return [hook for hook in hooks if getattr(hook, "__module__", None) != output_capturing.__name__]


def tensors_of(modules: Iterable[nn.Module]) -> list[Tensor]:
    """The parameters and buffers of modules, in this order, without sparse ones, which have no address.

    A tied parameter occurs once per module.
    """
    return [
        tensor
        for module in modules
        for tensor in (*module._parameters.values(), *module._buffers.values())
        if tensor is not None and tensor.layout == torch.strided
    ]


def versions_of(tensors: Iterable[Tensor]) -> list[Any]:
    """Values that change if a tensor is replaced, or modified by an operation that PyTorch counts."""
    versions = []
    for tensor in tensors:
        count = 0 if tensor.is_inference() else tensor._version
        versions.append((tensor.data_ptr(), tensor.dtype, count))
    return versions
