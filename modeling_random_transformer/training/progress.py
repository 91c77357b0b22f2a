"""A progress bar that says what one wants to know of a training run."""

import time
from typing import TYPE_CHECKING, Any

from torch import Tensor
from transformers.trainer_callback import ProgressCallback

if TYPE_CHECKING:
    from .trainer import TranslationTrainer


class TranslationProgress(ProgressCallback):
    """The library's bar, which shows steps and the time left, with loss, learning rate and tokens a second."""

    def __init__(self, trainer: "TranslationTrainer", **kwargs: Any):
        super().__init__(**kwargs)
        self.trainer = trainer
        self.tokens: Tensor | int = 0  # on the device, which nothing waits for until a rate is shown
        self.since = time.perf_counter()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.tokens, self.since = 0, time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_step_end(args, state, control, **kwargs)
        self.tokens += self.trainer.tokens_in_step

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        if logs is not None and "loss" in logs and self.training_bar is not None:
            seconds = max(time.perf_counter() - self.since, 1e-9)
            rate = float(self.tokens) / seconds * args.world_size
            self.training_bar.set_postfix_str(
                f"loss {float(logs['loss']):.3f}, rate {float(logs['learning_rate']):.2e}, {rate:,.0f} tokens/s"
            )
            self.tokens, self.since = 0, time.perf_counter()
        else:
            super().on_log(args, state, control, logs=logs, **kwargs)
