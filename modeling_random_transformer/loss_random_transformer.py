"""Cross-entropy with label smoothing (paper 5.4), in one pass over the logits."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

# Scores converted to float32 at a time. The CPU's value keeps them in its cache.
CHUNK = 2**19
CHUNK_ON_DEVICE = 2**26


def is_transformed() -> bool:
    """Whether `torch.compile`, `torch.export` or a `torch.func` transform runs the code that calls this.

    They need PyTorch's own operations: a custom autograd function or random numbers drawn in place would break the
    graph, or have no batching rule.
    """
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def token_loss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,  # noqa: ARG001
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    **kwargs: Any,  # noqa: ARG001
) -> Tensor:
    """`smoothed_cross_entropy` without smoothing, with the arguments of the library's loss functions.

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
    of the logits: a few rows at a time are converted to float32, and the gradient, in the dtype of the logits, is
    computed together with the loss. Under `torch.compile`, `torch.export` and `torch.func` it is PyTorch's function.

    The loss and its gradient are 0 when no label counts, or when `count` is 0.

    Args:
        logits: `[batch, target_len, vocab_size]`.
        labels: `[batch, target_len]`. Labels equal to `ignore_index` add nothing to the loss or to the count.
        smoothing: the probability that is spread evenly over the vocabulary, at least 0 and below 1.
        count: tokens to average over; by default those of `labels`.
        ignore_index: the label of positions without a target.
        overwrite: store the gradient in the memory of the logits, for callers that do not need them any more. Second
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
        right = labels.masked_fill(ignored, 0)[:, None]
        now, later = weight, torch.ones_like(weight)
        if logits.dtype == torch.float16:
            # weight = mantissa · power of two. The power, which no dtype rounds, is applied in the backward pass: there
            # float16 has its loss scaled, and small gradients do not vanish.
            now, exponent = torch.frexp(weight)
            later = torch.ldexp(later, exponent)
        factors = now.expand(len(labels)).masked_fill(ignored, 0)[:, None]
        gradient = None
        if ctx.needs_input_grad[0]:
            gradient = logits.detach() if overwrite else torch.empty_like(logits)
        loss = torch.zeros_like(weight)
        size = max(1, (CHUNK if logits.device.type == "cpu" else CHUNK_ON_DEVICE) // logits.shape[1])
        for chunk in (slice(start, start + size) for start in range(0, len(logits), size)):
            scores = logits[chunk].to(weight.dtype).log_softmax(dim=1)
            reached = scores.gather(1, right[chunk])[:, 0]
            if smoothing:  # a score of -inf times 0 would be NaN
                reached = (1 - smoothing) * reached + smoothing * scores.mean(dim=1)
            loss -= reached.masked_fill(ignored[chunk], 0).sum()
            if gradient is not None:  # probability - target, for every score
                scores = torch.exp(scores, out=gradient[chunk] if gradient.dtype == scores.dtype else scores)
                if smoothing:
                    scores.sub_(smoothing / logits.shape[1])
                scores.scatter_add_(1, right[chunk], scores.new_full((len(scores), 1), smoothing - 1))
                gradient[chunk] = scores.mul_(factors[chunk])
        # Second derivatives need the logits. They are as large as the gradient, but exist until here in any case.
        ctx.save_for_backward(gradient, later, None if overwrite else logits, labels, weight)
        ctx.ignore_index, ctx.smoothing = ignore_index, smoothing
        return loss * weight

    @staticmethod
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradient, later, logits, labels, weight = ctx.saved_tensors
        if torch.is_grad_enabled():  # create_graph=True
            if logits is None:
                raise RuntimeError("overwrite must be False for a backward pass with create_graph=True, got True.")
            loss = cross_entropy_sum(logits, labels, ctx.ignore_index, ctx.smoothing, weight)
            gradient = torch.autograd.grad(loss, logits, scale, create_graph=True)[0]
        else:
            gradient = _scale(gradient, (scale * later).to(gradient.dtype))
        return gradient, None, None, None, None, None


def _scale(gradient: Tensor, scale: Tensor) -> Tensor:
    """`gradient * scale`, in the memory of the gradient unless another backward pass may need it."""
    if is_transformed() or torch._C._autograd._get_current_graph_task_keep_graph():
        return gradient * scale
    if scale.device.type == "cpu" and scale == 1:  # a comparison would synchronize a GPU
        return gradient
    return gradient.mul_(scale)
