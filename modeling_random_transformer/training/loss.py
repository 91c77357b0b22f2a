"""Cross-entropy with label smoothing (paper 5.4), in one pass over the logits."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

IGNORED = -100
# Logits of so many scores are in float32 at a time, few enough to stay in a CPU's cache.
CHUNK = 2**17
CHUNK_ON_DEVICE = 2**26


class SmoothedCrossEntropy:
    """Cross-entropy with label smoothing, averaged over all target tokens of an optimizer step.

    A target is `1 - smoothing` on the right token and `smoothing` spread evenly over the vocabulary. Labels of -100 are
    left out, from the count too. Equals `torch.nn.functional.cross_entropy(…, label_smoothing=smoothing)` on logits in
    float32, without its copies of the logits: they are taken to float32 a few rows at a time, and their gradient, in
    their own dtype, is made along with the loss.

    Args:
        smoothing: the share that is spread, 0 to 1; the paper's 0.1.
    """

    def __init__(self, smoothing: float = 0.1):
        if not 0 <= smoothing < 1:
            raise ValueError(f"label_smoothing_factor must be at least 0 and below 1, got {smoothing}.")
        self.smoothing = smoothing

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss in nats per token.

        Args:
            outputs: the model's output, with logits `[batch, target_len, vocab_size]`.
            labels: `[batch, target_len]`.
            num_items_in_batch: target tokens of the whole step, over all its batches and devices; those of this batch
                when `None`.
        """
        logits = outputs["logits"]
        count = (labels != IGNORED).sum() if num_items_in_batch is None else num_items_in_batch
        weight = torch.as_tensor(count, dtype=torch.float32, device=logits.device).reciprocal()
        return _SmoothedSum.apply(logits.flatten(0, -2), labels.flatten(), self.smoothing, weight)


class _SmoothedSum(torch.autograd.Function):
    """`weight` times the sum over the tokens, of logits `[tokens, vocab_size]` with labels `[tokens]`."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, smoothing: float, weight: Tensor) -> Tensor:
        # weight = mantissa · power of two. The gradient takes the mantissa in float32 here and the power, which no
        # dtype rounds, on the way back: there float16 has its loss scaled, and small gradients do not vanish.
        mantissa, exponent = torch.frexp(weight)
        counted = labels != IGNORED
        right = labels.masked_fill(~counted, 0)[:, None]
        gradient = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        losses = []
        size = max(1, (CHUNK if logits.device.type == "cpu" else CHUNK_ON_DEVICE) // logits.shape[1])
        for chunk in (slice(start, start + size) for start in range(0, len(logits), size)):
            scores = logits[chunk].float()
            total = scores.logsumexp(dim=1, keepdim=True)
            reached = (1 - smoothing) * scores.gather(1, right[chunk]) + smoothing * scores.mean(dim=1, keepdim=True)
            losses.append(((total - reached)[:, 0] * counted[chunk]).sum())
            if gradient is not None:  # probability - target, for every score
                scores = (scores - total).exp_().sub_(smoothing / logits.shape[1])
                scores.scatter_add_(1, right[chunk], scores.new_full((len(scores), 1), smoothing - 1))
                gradient[chunk] = scores.mul_(counted[chunk, None] * mantissa)
        ctx.save_for_backward(gradient, torch.ldexp(torch.ones_like(mantissa), exponent))
        return torch.stack(losses).sum() * weight

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None, None, None]:
        gradient, power = ctx.saved_tensors
        return gradient * (scale * power).to(gradient.dtype), None, None, None
