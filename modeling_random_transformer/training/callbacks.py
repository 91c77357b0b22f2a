"""Callbacks of the trainer: progress, state and the training time."""

import time
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from transformers.trainer_callback import ExportableState, ProgressCallback, TrainerCallback, TrainerState

from ..data.batches import TokenBudgetSampler
from ..data.sources import Pair
from ..versions_random_transformer import UNTESTED_ADVICE
from .checkpoints import checkpoint_folder, is_complete


class ThroughputProgressCallback(ProgressCallback):
    """transformers' progress bar with loss, learning rate and throughput instead of printed log entries.

    Args:
        trainer: the trainer, which counts its tokens and has samples of the last evaluation.
    """

    def __init__(self, trainer: Any):
        super().__init__()
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        self.trainer.token_count = 0
        self.start = time.perf_counter()

    def on_log(self, args: Any, state: Any, control: Any, logs: dict | None = None, **kwargs: Any) -> None:
        entry = logs or {}
        if self.training_bar is not None and "eval_bleu" in entry:
            self.training_bar.write(describe_evaluation(state.log_history, self.trainer.samples))
        elif self.training_bar is not None and "loss" in entry:
            end = time.perf_counter()
            groups = args.world_size / args.tp_size  # a tensor-parallel group shares a batch
            rate = float(self.trainer.token_count) * groups / max(end - self.start, 1e-9)
            self.trainer.token_count = 0
            self.start = end
            loss = float(entry["loss"])
            learning_rate = float(entry["learning_rate"])
            self.training_bar.set_postfix_str(f"loss {loss:.3f}, lr {learning_rate:.2e}, {rate:,.0f} tokens/s")
        else:
            super().on_log(args, state, control, logs=logs, **kwargs)


def describe_evaluation(history: Sequence[dict[str, Any]], samples: Sequence[Pair]) -> str:
    """The scores of the last entry of the log, the best ones so far, and the sample translations."""
    *_, last = (entry for entry in history if "eval_bleu" in entry)
    scores = []
    for key, name in (("eval_bleu", "BLEU"), ("eval_chrf", "chrF++")):
        if key in last:
            best = max((entry for entry in history if key in entry), key=itemgetter(key))
            scores.append(f"{name} {last[key]:.2f} (best {best[key]:.2f} at step {best['step']:,})")
    lines = [f"step {last['step']:,}: {', '.join(scores)}"]
    lines += [f"  {source}  →  {translation}" for source, translation in samples]
    return "\n".join(lines)


class TrainingStateCallback(TrainerCallback):
    """Sets the intervals of a resumed run and the epoch of the sampler, and checks that a checkpoint is complete."""

    sampler: TokenBudgetSampler | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        state.compute_steps(args, state.max_steps)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if self.sampler is not None:
            self.sampler.set_epoch(int(state.epoch or 0))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        checkpoint = checkpoint_folder(args.output_dir, state.global_step)
        if args.should_save and checkpoint.is_dir() and not is_complete(checkpoint):
            raise RuntimeError(f"transformers does not save {checkpoint} by _save_checkpoint. {UNTESTED_ADVICE}")


class TimeCallback(TrainerCallback, ExportableState):
    """Saves the training time in checkpoints, so that it includes earlier processes of a run."""

    def __init__(self) -> None:
        self.begin = time.perf_counter()
        self.seconds = 0.0  # the time of earlier processes of the run

    def resume(self, state: TrainerState) -> None:
        """Add the time in the state of a checkpoint, if it has one."""
        self.seconds = state.stateful_callbacks.get("TimeCallback", self.state())["attributes"]["seconds"]

    @property
    def total(self) -> float:
        """The training time until now, in seconds."""
        return self.seconds + time.perf_counter() - self.begin

    def state(self) -> dict[str, Any]:
        return {"args": {}, "attributes": {"seconds": self.total}}
