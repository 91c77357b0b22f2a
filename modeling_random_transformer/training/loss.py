"""The training loss, cross-entropy with label smoothing (paper 5.4), and the detection of non-finite losses."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..ops_random_transformer import smoothed_cross_entropy


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


@dataclass
class MicroBatch:
    """A batch whose loss may not be computed yet, and its optimizer step, counted from 1."""

    step: int
    loss: Tensor
    inputs: dict[str, Any]


class LossMonitor:
    """Detects non-finite losses. Losses are read a step later: reading that of the current step would synchronize.

    Args:
        tokenizer: decodes the first source of a batch for the error message; without one, the message shows ids.
        advice: returns the end of the error message.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, advice: Callable[[], str]):
        self.tokenizer = tokenizer
        self.advice = advice
        self.unchecked: list[MicroBatch] = []

    def add(self, step: int, loss: Tensor, inputs: dict[str, Any]) -> None:
        """Add a batch of an optimizer step, which counts from 1."""
        self.unchecked.append(MicroBatch(step, loss, inputs))

    def check(self, before: int) -> None:
        """Check the losses before a step. Synchronizes with the device.

        Raises:
            FloatingPointError: a loss is not finite; the message names the step and the batch.
        """
        checked = [batch for batch in self.unchecked if batch.step < before]
        if not checked:
            return
        self.unchecked = self.unchecked[len(checked) :]
        finite = torch.stack([batch.loss for batch in checked]).isfinite()
        if not finite.all():
            first = checked[int(finite.int().argmin())]
            raise FloatingPointError(f"{self.describe(first)} {self.advice()}")

    def describe(self, batch: MicroBatch) -> str:
        """The loss, the step, the shapes and the first source of a batch."""
        shapes = ", ".join(f"{name} {list(value.shape)}" for name, value in batch.inputs.items())
        ids = batch.inputs["input_ids"][0].tolist()
        source = self.tokenizer.decode(ids, skip_special_tokens=True) if self.tokenizer else ids
        return (
            f"the loss is {batch.loss.item()} at step {batch.step}, in a batch of {shapes} whose first "
            f"source is {source!r}."
        )
