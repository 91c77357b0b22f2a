"""The process of a node in a training run on two nodes. The second node is killed once, in the middle of the run."""

import json
import os
import signal
import sys
from pathlib import Path

import modeling_random_transformer.training.run as module
from modeling_random_transformer.training.trainer import TranslationTrainer
from tests.helpers.many_devices_worker import OPTIONS
from tests.helpers.training import run

SAVE_STEPS = 5
KILLED_AT = 12  # steps


class RecordingTrainer(TranslationTrainer):
    """Writes the losses of all steps to a file, also of those that are repeated."""

    folder: Path

    def log(self, logs: dict, *args: object, **kwargs: object) -> None:
        if "loss" in logs and self.is_world_process_zero():
            with (self.folder / "losses.jsonl").open("a") as file:
                file.write(json.dumps([self.state.global_step, logs["loss"]]) + "\n")
        super().log(logs, *args, **kwargs)

    def training_step(self, *args: object, **kwargs: object) -> object:
        killed = self.folder / "killed"
        if os.environ["GROUP_RANK"] == "1" and self.state.global_step == KILLED_AT and not killed.exists():
            killed.touch()
            os.kill(os.getppid(), signal.SIGKILL)  # torchrun, which could restart this process
            os.kill(os.getpid(), signal.SIGKILL)
        return super().training_step(*args, **kwargs)


if __name__ == "__main__":
    RecordingTrainer.folder = Path(sys.argv[1])
    module.TranslationTrainer = RecordingTrainer
    run(RecordingTrainer.folder, "two_nodes", **{**OPTIONS, "save_steps": SAVE_STEPS})
