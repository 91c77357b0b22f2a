"""R-Drop (Liang et al. 2021, https://arxiv.org/abs/2106.14448): two dropout passes whose predictions should agree."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ...ops_random_transformer import IGNORE_INDEX, row_chunks, token_weight
from .loss import SmoothedCrossEntropy


class RDropLoss(SmoothedCrossEntropy):
    """The cross-entropy, averaged over both passes, plus a divergence of their predictions.

    The divergence is `alpha / 2` times the mean of the Kullback-Leibler divergences in both directions. The result is
    half of the paper's loss, so that it has the scale of a single pass.

    Args:
        smoothing: label smoothing of the cross-entropy.
        alpha: weight of the divergence, at least 0; 5 in the paper's translation models.
    """

    def __init__(self, smoothing: float, alpha: float):
        super().__init__(smoothing)
        self.alpha = alpha

    def training_inputs(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of both passes, `[2 · batch, …]`, and the labels of one."""
        doubled = {name: value.repeat(2, 1) for name, value in inputs.items()}
        return {**doubled, "labels": inputs["labels"]}

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss in nats per token.

        Args:
            outputs: the model's output, with logits `[2 · batch, target_len, vocab_size]`: the first pass, then the
                second one. With logits of one pass, as in evaluation without generation, the loss is the cross-entropy.
            labels: `[batch, target_len]`.
            num_items_in_batch: target tokens of the step, over all batches and devices, counted once; when `None`,
                those of this batch.
        """
        logits = outputs["logits"]
        labels = labels.to(logits.device)
        if len(logits) == len(labels):
            return super().__call__(outputs, labels, num_items_in_batch)
        count = num_items_in_batch
        if count is None:
            count = (labels != IGNORE_INDEX).sum()
        entropy = super().__call__(outputs, labels.repeat(2, 1), 2 * count)
        divergence = symmetric_divergence(logits, labels, count)
        return entropy + self.alpha / 4 * divergence


def symmetric_divergence(logits: Tensor, labels: Tensor, count: Tensor | int) -> Tensor:
    """KL(p, q) + KL(q, p) of the predictions p and q of two passes, summed over the tokens and divided by `count`.

    A few rows at a time are converted to float32. The backward pass converts them again instead of storing them.

    Args:
        logits: `[2 · batch, target_len, vocab_size]`, the first pass, then the second one.
        labels: `[batch, target_len]`. Positions with a label of -100 do not count.
        count: number of tokens.
    """
    passes = logits.unflatten(0, (2, -1)).flatten(1, 2)  # [2, tokens, vocab_size]
    is_token = labels.flatten() != IGNORE_INDEX
    weights = is_token * token_weight(count, like=logits)
    divergences = []
    for rows in row_chunks(passes[0]):
        divergence = checkpoint(
            weighted_divergence, passes[:, rows], weights[rows], use_reentrant=False, preserve_rng_state=False
        )
        divergences.append(divergence)
    return torch.stack(divergences).sum()


def weighted_divergence(passes: Tensor, weights: Tensor) -> Tensor:
    """The divergence of logits `[2, tokens, vocab_size]`, summed with the weights of the tokens."""
    log_p, log_q = passes.to(weights.dtype).log_softmax(dim=2)
    difference = log_p.exp() - log_q.exp()
    # Not by `vecdot` and `@`, which autocast would compute in half precision.
    divergences = (difference * (log_p - log_q)).sum(dim=1)
    return (divergences * weights).sum()
