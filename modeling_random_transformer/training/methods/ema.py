"""Exponential moving average (EMA) of the weights, an alternative to the average of checkpoints (paper 6.1)."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn
from transformers import TrainerCallback

EMA = "ema.safetensors"


class EMACallback(TrainerCallback):
    """Averages the trainable weights in float32, after every optimizer step and starting with the initial weights.

    The decay of step n is min(decay, (1 + n) / (10 + n)), so that the initial weights do not dominate the first steps.

    Without averages, which exist from the beginning to the end of a training with this callback, `applied` and `finish`
    do nothing.

    Args:
        decay: weight of the previous average, in (0, 1).
    """

    def __init__(self, decay: float):
        self.decay = decay
        self.resumed_from: Path | None = None
        self.averages: dict[str, Tensor] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:  # noqa: ARG002
        """Start with the averages of the checkpoint, or with the weights if it has none."""
        trainable = [name for name, weight in model.named_parameters() if weight.requires_grad]
        self.averages = {name: weight.float().clone() for name, weight in _weights(model, trainable).items()}
        if self.resumed_from is not None and (self.resumed_from / EMA).is_file():
            self.averages = read_averages(model, self.resumed_from)

    def on_step_end(self, args: Any, state: Any, control: Any, model: nn.Module, **kwargs: Any) -> None:  # noqa: ARG002
        """Update the averages."""
        step = state.global_step
        weights = [weight.float() for weight in _weights(model, self.averages).values()]
        get_ema_multi_avg_fn(min(self.decay, (1 + step) / (10 + step)))(list(self.averages.values()), weights, step)

    def save(self, checkpoint: Path) -> None:
        """Save the averages."""
        save_file({name: average.cpu() for name, average in self.averages.items()}, checkpoint / EMA)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Use the averages as the model's weights."""
        weights = {name: weight.clone() for name, weight in _weights(model, self.averages).items()}
        model.load_state_dict(self.averages, strict=False)
        try:
            yield
        finally:
            model.load_state_dict(weights, strict=False)

    def finish(self, model: nn.Module) -> None:
        """Replace the model's weights with the averages."""
        model.load_state_dict(self.averages, strict=False)
        self.averages = {}


def read_averages(model: nn.Module, checkpoint: Path) -> dict[str, Tensor]:
    """The averages in a checkpoint, in the order and on the devices of the model's weights.

    Raises:
        ValueError: the averages do not match the model.
    """
    averages = load_file(checkpoint / EMA)
    weights = _weights(model, averages)
    if averages.keys() != weights.keys() or any(averages[name].shape != weights[name].shape for name in weights):
        raise ValueError(f"{checkpoint / EMA} must have the names and shapes of the model's weights.")
    return {name: averages[name].to(weight.device) for name, weight in weights.items()}


def _weights(model: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
    return {name: weight.detach() for name, weight in model.named_parameters() if name in names}
