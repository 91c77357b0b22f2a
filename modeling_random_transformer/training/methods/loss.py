"""Cross-entropy with label smoothing (paper 5.4)."""

from typing import Any

from torch import Tensor

from ...ops_random_transformer import smoothed_cross_entropy


class SmoothedCrossEntropy:
    """Cross-entropy with label smoothing, averaged over all target tokens of an optimizer step.

    A target distribution is `1 - smoothing` on the label plus `smoothing` spread evenly over the vocabulary. Labels of
    -100 are ignored and not counted.

    Args:
        smoothing: the probability that is spread, in [0, 1); 0.1 in the paper.
        overwrite: store the gradient in the memory of the logits, which are then no longer usable.
    """

    def __init__(self, smoothing: float = 0.1, overwrite: bool = False):
        self.smoothing = smoothing
        self.overwrite = overwrite

    def training_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """The inputs of the model in training, for a batch; a regularization may change them."""
        return inputs

    def __call__(self, outputs: Any, labels: Tensor, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """The loss in nats per token.

        Args:
            outputs: the model's output, with logits `[batch, target_len, vocab_size]`.
            labels: `[batch, target_len]`.
            num_items_in_batch: number of target tokens in the step, over all batches and devices. When `None`, the
                number in this batch.
        """
        logits = outputs["logits"]
        return smoothed_cross_entropy(logits, labels, self.smoothing, num_items_in_batch, overwrite=self.overwrite)
