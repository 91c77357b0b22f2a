"""R-Drop (Liang et al. 2021, https://arxiv.org/abs/2106.14448): two dropout passes whose predictions should agree."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..ops_random_transformer import LOSS_CHUNK_CPU, LOSS_CHUNK_GPU, reciprocal
from .loss import SmoothedCrossEntropy


class RDropLoss(SmoothedCrossEntropy):
    """Half of the paper's loss, so that its scale is that of one pass.

    This is the cross-entropy, averaged over both passes, plus `alpha / 2` times the mean of the Kullback-Leibler
    divergences in both directions.

    Args:
        smoothing: label smoothing of the cross-entropy.
        alpha: weight of the divergence, at least 0; 5 in the paper's translation models.
    """

    def __init__(self, smoothing: float, alpha: float):
        super().__init__(smoothing, overwrite=True)
        self.alpha = alpha

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss in nats per token.

        Args:
            outputs: the model's output, with logits `[2 · batch, target_len, vocab_size]`: the first pass, then the
                second one. With logits of one pass, as in evaluation, the loss is the cross-entropy.
            labels: `[batch, target_len]`.
            num_items_in_batch: target tokens of the step, over all batches and devices, counted once; when `None`,
                those of this batch.
        """
        logits = outputs["logits"]
        labels = labels.to(logits.device)
        if len(logits) == len(labels):
            return super().__call__(outputs, labels, num_items_in_batch)
        count = (labels != -100).sum() if num_items_in_batch is None else num_items_in_batch
        # The cross-entropy is last, because it overwrites the logits.
        divergence = symmetric_divergence(logits, labels, count)
        return super().__call__(outputs, labels.repeat(2, 1), 2 * count) + self.alpha / 4 * divergence


def symmetric_divergence(logits: Tensor, labels: Tensor, count: Tensor | int) -> Tensor:
    """KL(p, q) + KL(q, p) of the predictions p and q of two passes, summed over the tokens and divided by `count`.

    A few rows at a time are converted to float32, and the gradient is computed together with the divergence, as in
    `smoothed_cross_entropy`.

    Args:
        logits: `[2 · batch, target_len, vocab_size]`, the first pass, then the second one.
        labels: `[batch, target_len]`. Positions with a label of -100 do not count.
        count: number of tokens.
    """
    divergence: Tensor = _SymmetricDivergence.apply(
        logits.flatten(0, -2), labels.flatten() != -100, reciprocal(count, logits)
    )
    return divergence


class _SymmetricDivergence(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, counted: Tensor, weight: Tensor) -> Tensor:
        # weight = mantissa · power of two. The power is exact in every dtype and is applied in the backward pass, where
        # float16 gradients are scaled by the loss scaler and do not underflow.
        mantissa, exponent = torch.frexp(weight)
        passes = logits.unflatten(0, (2, -1))  # [2, tokens, vocab_size]
        gradient = torch.empty_like(passes) if ctx.needs_input_grad[0] else None
        total = torch.zeros_like(weight)
        size = max(1, (LOSS_CHUNK_CPU if logits.device.type == "cpu" else LOSS_CHUNK_GPU) // logits.shape[1])
        for rows in (slice(start, start + size) for start in range(0, len(counted), size)):
            factor = counted[rows, None].to(weight.dtype)
            log_p, log_q = passes[:, rows].to(weight.dtype).log_softmax(dim=2)
            p, q, difference = log_p.exp(), log_q.exp(), log_p - log_q
            forward = torch.linalg.vecdot(p, difference)[:, None]  # KL(p, q)
            backward = -torch.linalg.vecdot(q, difference)[:, None]  # KL(q, p)
            total += ((forward + backward) * factor).sum()
            if gradient is not None:  # d/dx KL(p, q) = p · (log p - log q - KL(p, q)), d/dx KL(q, p) = p - q
                factor *= mantissa
                gradient[0, rows] = (difference - (forward - 1)).mul_(p).sub_(q).mul_(factor)
                gradient[1, rows] = difference.add_(backward - 1).mul_(q).add_(p).mul_(-factor)
        ctx.save_for_backward(gradient, torch.ldexp(torch.ones_like(weight), exponent))
        return total * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        gradient, power = ctx.saved_tensors
        return (gradient * (scale * power).to(gradient.dtype)).flatten(0, 1), None, None
