"""Exponential moving average (EMA) of the weights, an alternative to the average of checkpoints (paper 6.1)."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback

from .checkpoints import to_local

EMA = "ema.safetensors"


class EMACallback(TrainerCallback):
    """Averages the trainable weights in float32, after every optimizer step and starting with the initial weights.

    The decay of step n is min(decay, (1 + n) / (10 + n)), so that the initial weights do not dominate the first steps.

    Without averages, which exist from the beginning to the end of a training with this callback, `load`, `save`,
    `applied` and `finish` do nothing.

    Args:
        decay: weight of the previous average, in (0, 1).
    """

    def __init__(self, decay: float):
        self.decay = decay
        self.resumed_from: Path | None = None
        self.averages: dict[str, Tensor] = {}  # the shards of this process

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:  # noqa: ARG002
        """Start with the averages of the checkpoint, or with the weights if it has none."""
        trainable = [name for name, weight in model.named_parameters() if weight.requires_grad]
        self.averages = {name: to_local(weight).float().clone() for name, weight in _weights(model, trainable)}
        if self.resumed_from is not None and (self.resumed_from / EMA).is_file():
            self.load(model, self.resumed_from)

    def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:  # noqa: ARG002
        """Update the averages."""
        step = state.global_step
        weights = [to_local(weight).float() for _, weight in _weights(model, self.averages)]
        get_ema_multi_avg_fn(min(self.decay, (1 + step) / (10 + step)))(list(self.averages.values()), weights, step)

    def load(self, model: nn.Module, checkpoint: Path) -> None:
        """Replace the averages with those of a checkpoint."""
        if self.averages:
            self.averages = {name: to_local(average) for name, average in _load(model, checkpoint)}

    def save(self, model: nn.Module, checkpoint: Path, is_writer: bool) -> None:
        """Save the complete averages; every process of the run must call this."""
        averages = {name: _complete(self.averages[name], weight) for name, weight in _weights(model, self.averages)}
        if averages and is_writer:
            save_file(averages, checkpoint / EMA)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Use the averages as the model's weights."""
        weights = {name: to_local(weight).clone() for name, weight in _weights(model, self.averages)}
        self._copy(self.averages, model)
        try:
            yield
        finally:
            self._copy(weights, model)

    def finish(self, model: nn.Module) -> None:
        """Replace the model's weights with the averages."""
        self._copy(self.averages, model)
        self.averages = {}

    @staticmethod
    def _copy(values: dict[str, Tensor], model: nn.Module) -> None:
        for name, weight in _weights(model, values):
            to_local(weight).copy_(values[name])


def load_ema(model: nn.Module, checkpoint: Path) -> None:
    """Replace the trained weights with the averages in a checkpoint.

    Raises:
        ValueError: the averages do not match the model.
    """
    averages = dict(_load(model, checkpoint))
    for name, weight in _weights(model, averages):
        weight.copy_(averages[name])


def _weights(model: nn.Module, names: Collection[str]) -> list[tuple[str, Tensor]]:
    return [(name, weight.detach()) for name, weight in model.named_parameters() if name in names]


def _load(model: nn.Module, checkpoint: Path) -> Iterator[tuple[str, Tensor]]:
    """The averages in a checkpoint, in the order, on the devices and with the shards of the model's weights."""
    averages = load_file(checkpoint / EMA)
    weights = _weights(model, averages)
    if {name: weight.shape for name, weight in weights} != {name: value.shape for name, value in averages.items()}:
        raise ValueError(f"{checkpoint / EMA} must have the names and shapes of the model's weights.")
    for name, weight in weights:
        average = averages[name].to(weight.device)
        if isinstance(weight, DTensor):
            average = distribute_tensor(average, weight.device_mesh, weight.placements)
        yield name, average


def _complete(average: Tensor, weight: Tensor) -> Tensor:
    """The complete average of a weight from the shards of all processes, on the CPU."""
    if isinstance(weight, DTensor):
        average = DTensor.from_local(
            average, weight.device_mesh, weight.placements, shape=weight.shape, stride=weight.stride()
        ).full_tensor()
    return average.cpu().contiguous()
