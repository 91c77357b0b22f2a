"""The training losses: cross-entropy with label smoothing (paper 5.4), and R-Drop."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...ops_random_transformer import reciprocal, row_chunks, smoothed_cross_entropy


class SmoothedCrossEntropy:
    """Cross-entropy with label smoothing, averaged over all target tokens of an optimizer step.

    A target distribution is `1 - smoothing` on the label plus `smoothing` spread evenly over the vocabulary. Labels of
    -100 are ignored and not counted.

    Args:
        smoothing: the probability that is spread, in [0, 1); 0.1 in the paper.
        overwrite: store the gradient in the memory of the logits, which are then no longer usable.
    """

    def __init__(self, smoothing: float = 0.1, overwrite: bool = False):
        if not 0 <= smoothing < 1:
            raise ValueError(f"label_smoothing_factor must be at least 0 and below 1, got {smoothing}.")
        self.smoothing = smoothing
        self.overwrite = overwrite

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss in nats per token.

        Args:
            outputs: the model's output, with logits `[batch, target_len, vocab_size]`.
            labels: `[batch, target_len]`.
            num_items_in_batch: target tokens of the step, over all batches and devices; when `None`, those of this
                batch.
        """
        logits = outputs["logits"]
        return smoothed_cross_entropy(logits, labels, self.smoothing, num_items_in_batch, overwrite=self.overwrite)


class RDropLoss(SmoothedCrossEntropy):
    """R-Drop (Liang et al. 2021, https://arxiv.org/abs/2106.14448): two dropout passes whose predictions should agree.

    It is half of the paper's loss, so that its scale is that of one pass.

    This is the cross-entropy, averaged over both passes, plus `alpha / 2` times the mean of the Kullback-Leibler
    divergences in both directions.

    Args:
        smoothing: label smoothing of the cross-entropy.
        alpha: weight of the divergence, at least 0; 5 in the paper's translation models.
    """

    def __init__(self, smoothing: float, alpha: float):
        super().__init__(smoothing)
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
        entropy = super().__call__(outputs, labels.repeat(2, 1), 2 * count)
        return entropy + self.alpha / 4 * symmetric_divergence(logits, labels, count)


def symmetric_divergence(logits: Tensor, labels: Tensor, count: Tensor | int) -> Tensor:
    """KL(p, q) + KL(q, p) of the predictions p and q of two passes, summed over the tokens and divided by `count`.

    A few rows at a time are converted to float32, and again in the backward pass, so that they need not be stored.

    Args:
        logits: `[2 · batch, target_len, vocab_size]`, the first pass, then the second one.
        labels: `[batch, target_len]`. Positions with a label of -100 do not count.
        count: number of tokens.
    """
    passes = logits.unflatten(0, (2, -1)).flatten(1, 2)  # [2, tokens, vocab_size]
    weights = (labels.flatten() != -100) * reciprocal(count, logits)
    options: Any = {"use_reentrant": False, "preserve_rng_state": False}
    divergences = [
        checkpoint(_weighted_divergence, passes[:, rows], weights[rows], **options) for rows in row_chunks(passes[0])
    ]
    return torch.stack(divergences).sum()


def _weighted_divergence(passes: Tensor, weights: Tensor) -> Tensor:
    """The divergence of logits `[2, tokens, vocab_size]`, summed with the weights of the tokens."""
    log_p, log_q = passes.to(weights.dtype).log_softmax(dim=2)
    return torch.linalg.vecdot(log_p.exp() - log_q.exp(), log_p - log_q) @ weights
