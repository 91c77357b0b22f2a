"""Stops a run if its loss or weights are not finite."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

STABILITY_ADVICE = "Decrease learning_rate, increase warmup_steps or set max_grad_norm."


@dataclass(frozen=True)
class UncheckedLoss:
    """The loss of a batch that the CPU has not read yet."""

    step: int  # counted from 0
    loss: Tensor
    inputs: dict[str, Any]
    is_finite: Tensor  # on the CPU, valid when the event has occurred
    copied: torch.Event | None  # `None` on a CPU


class LossCheck:
    """Reads losses later than they are computed, so that the CPU launches the next kernels while a GPU computes.

    Args:
        tokenizer: decodes a source for the message; `None` to show its token ids.
    """

    def __init__(self, tokenizer: Any = None):
        self.tokenizer = tokenizer
        self.unchecked: list[UncheckedLoss] = []

    def add(self, step: int, loss: Tensor, inputs: dict[str, Any]) -> None:
        """Store the loss of a batch until it is checked. Steps are counted from 0."""
        is_finite = loss.detach().isfinite()
        copied = None
        if not is_finite.is_cpu:
            copied = torch.Event(device=is_finite.device)
            is_finite = is_finite.to("cpu", non_blocking=True)
            copied.record()
        self.unchecked.append(UncheckedLoss(step, loss, inputs, is_finite, copied))

    def check(self, end: int | None = None) -> None:
        """Check the losses before a step, by default all losses. Waits until they are computed.

        Raises:
            FloatingPointError: a loss is not finite; the message names the step and the batch.
        """
        earlier = [batch for batch in self.unchecked if end is None or batch.step < end]
        self.unchecked = self.unchecked[len(earlier) :]
        if earlier and earlier[-1].copied is not None:
            earlier[-1].copied.synchronize()
        for batch in earlier:
            if not batch.is_finite:
                raise FloatingPointError(self._message(batch))

    def _message(self, batch: UncheckedLoss) -> str:
        ids = batch.inputs["input_ids"]
        source = self.tokenizer.decode(ids[0], skip_special_tokens=True) if self.tokenizer else ids[0]
        return (
            f"the loss is {batch.loss.item()} at step {batch.step + 1}, in a batch of input_ids {list(ids.shape)} "
            f"whose first source is {source!r}. {STABILITY_ADVICE}"
        )


def check_weights(model: nn.Module, step: int) -> None:
    """Raise a `FloatingPointError` if weights are not finite after this step, for example by a non-finite gradient."""
    for name, weight in model.named_parameters():
        local = weight.to_local() if isinstance(weight, DTensor) else weight
        if weight.requires_grad and not local.isfinite().all():
            raise FloatingPointError(f"the weights are not finite after step {step}, first {name}. {STABILITY_ADVICE}")
