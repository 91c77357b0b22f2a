"""Callbacks of `TranslationTrainer`: the progress bar, the epoch of the sampler, and the intervals between events."""

import time
from typing import Any

from torch import Tensor
from transformers import TrainerCallback
from transformers.trainer_callback import ProgressCallback

from ..data.batches import TokenBudgetSampler


class Throughput:
    """Tokens since the last reading, and their number per second."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start counting."""
        self.tokens: Tensor | int = 0  # on the device until it is read
        self.since = time.perf_counter()

    def read(self) -> float:
        """Tokens per second of this process since the last reading; synchronizes with the device."""
        rate = float(self.tokens) / max(time.perf_counter() - self.since, 1e-9)
        self.reset()
        return rate


class ThroughputProgressCallback(ProgressCallback):
    """transformers' progress bar with loss, learning rate and throughput instead of printed log entries."""

    def __init__(self, throughput: Throughput):
        super().__init__()
        self.throughput = throughput

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.throughput.reset()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        if logs is not None and "loss" in logs and self.training_bar is not None:
            rate = self.throughput.read() * args.world_size / args.tp_size  # a tensor-parallel group shares a batch
            loss, learning_rate = float(logs["loss"]), float(logs["learning_rate"])
            self.training_bar.set_postfix_str(f"loss {loss:.3f}, lr {learning_rate:.2e}, {rate:,.0f} tokens/s")
        else:
            super().on_log(args, state, control, logs=logs, **kwargs)


class IntervalsCallback(TrainerCallback):
    """Uses the intervals between logs, evaluations and checkpoints of the arguments, not those of a resumed state."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        state.compute_steps(args, state.max_steps)


class SetEpochCallback(TrainerCallback):
    """Sets the epoch of the sampler, including after resuming within an epoch."""

    def __init__(self, sampler: TokenBudgetSampler):
        self.sampler = sampler

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self.sampler.set_epoch(int(state.epoch or 0))
