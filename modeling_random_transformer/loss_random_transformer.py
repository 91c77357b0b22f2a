"""Cross-entropy with label smoothing (paper 5.4), in one pass over the logits."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from transformers.loss.loss_utils import ForMaskedLMLoss

# Scores that are in float32 at a time: few enough to stay in a CPU's cache.
CHUNK = 2**19
CHUNK_ON_DEVICE = 2**26


def token_loss(
    logits: Tensor,
    labels: Tensor,
    vocab_size: int,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    **kwargs: Any,
) -> Tensor:
    """The library's loss for labels that are aligned with the logits, several times as fast on a CPU.

    The arguments are those of the library's loss functions; `torch.compile` is given the library's own.

    Raises:
        IndexError: a label is neither a token nor `ignore_index`; told on a CPU, where it costs nothing.
    """
    if torch.compiler.is_compiling():
        return ForMaskedLMLoss(logits, labels, vocab_size, num_items_in_batch, ignore_index, **kwargs)
    return smoothed_cross_entropy(logits, labels, 0.0, num_items_in_batch, ignore_index)


def smoothed_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    smoothing: float,
    count: Tensor | int | None = None,
    ignore_index: int = -100,
    overwrite: bool = False,
) -> Tensor:
    """Cross-entropy in nats per token, where a target is smoothed over the vocabulary.

    Equals `torch.nn.functional.cross_entropy(…, label_smoothing=smoothing)` on logits in float32, without its copies
    of the logits: they are taken to float32 a few rows at a time, and their gradient, in their own dtype, is made along
    with the loss.

    Args:
        logits: `[batch, target_len, vocab_size]`.
        labels: `[batch, target_len]`; those that are `ignore_index` are left out, from the count too.
        smoothing: the share of a target that is spread evenly over the vocabulary.
        count: tokens to average over; those of these labels when `None`.
        ignore_index: what says that nothing is to be predicted.
        overwrite: put the gradient where the logits are, for callers who need them no more. It saves as much memory as
            they take.

    Raises:
        IndexError: on a CPU, for a label that is neither a token nor `ignore_index`.
    """
    labels = labels.flatten().to(logits.device)
    counted = labels != ignore_index
    right = labels.masked_fill(~counted, 0)[:, None]
    if right.device.type == "cpu" and right.numel():
        lowest, highest = right.aminmax()
        if lowest < 0 or highest >= logits.shape[-1]:
            raise IndexError(f"labels must be from 0 to {logits.shape[-1] - 1}, got {lowest} to {highest}.")
    precision = torch.promote_types(logits.dtype, torch.float32)
    weight = 1 / torch.as_tensor(counted.sum() if count is None else count, dtype=precision, device=logits.device)
    loss: Tensor = _CrossEntropySum.apply(logits.flatten(0, -2), right, counted, smoothing, weight, overwrite)
    return loss


class _CrossEntropySum(torch.autograd.Function):
    """`weight` times the sum over `counted` tokens, of logits `[tokens, vocab_size]` with labels `[tokens, 1]`."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: Tensor,
        right: Tensor,
        counted: Tensor,
        smoothing: float,
        weight: Tensor,
        overwrite: bool,
    ) -> Tensor:
        now, later = weight, torch.ones_like(weight)
        if logits.dtype == torch.float16:
            # weight = mantissa · power of two. The power, which no dtype rounds, waits for the way back: there
            # float16 has its loss scaled, and small gradients do not vanish.
            now, exponent = torch.frexp(weight)
            later = torch.ldexp(later, exponent)
        gradient = None
        if ctx.needs_input_grad[0]:
            gradient = logits.detach() if overwrite else torch.empty_like(logits)
        losses = []
        size = max(1, (CHUNK if logits.device.type == "cpu" else CHUNK_ON_DEVICE) // logits.shape[1])
        for chunk in (slice(start, start + size) for start in range(0, len(logits), size)):
            scores = logits[chunk].to(weight.dtype).log_softmax(dim=1)
            reached = (1 - smoothing) * scores.gather(1, right[chunk]) + smoothing * scores.mean(dim=1, keepdim=True)
            losses.append(-(reached[:, 0] * counted[chunk]).sum())
            if gradient is not None:  # probability - target, for every score
                scores = torch.exp(scores, out=gradient[chunk] if gradient.dtype == scores.dtype else scores)
                if smoothing:
                    scores.sub_(smoothing / logits.shape[1])
                scores.scatter_add_(1, right[chunk], scores.new_full((len(scores), 1), smoothing - 1))
                gradient[chunk] = scores.mul_(counted[chunk, None] * now)
        ctx.save_for_backward(gradient, later)
        return torch.stack(losses).sum() * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradient, later = ctx.saved_tensors
        scale = scale * later
        unscaled = scale.device.type == "cpu" and scale == 1  # asking a GPU would make it wait
        return gradient if unscaled else gradient * scale.to(gradient.dtype), None, None, None, None, None
