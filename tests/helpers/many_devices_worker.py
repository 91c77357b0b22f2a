"""One process of two runs on several devices, plain and regularized; the first process writes the losses."""

import json
import sys
from pathlib import Path

from accelerate import Accelerator

from modeling_random_transformer.training.trainer import TranslationTrainer
from tests.helpers.training import run

# Without dropout, whose random numbers differ between processes.
SIZES = "d_model=16,d_ff=32,encoder_layers=1,decoder_layers=1,dropout=0.0"
OPTIONS = {
    "max_steps": 20,
    "logging_steps": 1,
    "save_steps": 20,
    "per_device_eval_batch_size": 4,
    "max_tokens_per_batch": 90,  # an even number of batches, so that both runs have the same batches
    "config_overrides": SIZES,
}
# Without word dropout, whose random numbers differ too. R-Drop requires dropout; this rate drops nothing in float32.
REGULARIZATION = {
    "bpe_dropout": 0.3,
    "ema_decay": 0.8,
    "r_drop_alpha": 5.0,
    "average_last": 1,
    "max_steps": 6,
    "config_overrides": SIZES.replace("dropout=0.0", "dropout=1e-9"),
}

KINDS = {
    "alone": {"gradient_accumulation_steps": 2},  # the number of batches per step of two processes
    "ddp": {},
    "fsdp": {"fsdp_size": 2},
    "tp": {"tp_size": 2, "gradient_accumulation_steps": 2},
}


def main(folder: Path, kind: str) -> None:
    losses = []

    class RecordingTrainer(TranslationTrainer):
        def log(self, logs: dict, *args: object, **kwargs: object) -> None:
            if "loss" in logs and self.is_world_process_zero():
                losses.append(logs["loss"])
            super().log(logs, *args, **kwargs)

    import modeling_random_transformer.training.run as module

    module.TranslationTrainer = RecordingTrainer
    if kind == "tp":
        # Accelerate supports tensor parallelism on listed device types only, without CPUs; nothing else depends on it.
        Accelerator.multi_device = True
    for name, options in ((kind, {}), (f"{kind}_regularized", REGULARIZATION)):
        losses.clear()
        result = run(folder, name, **KINDS[kind], **OPTIONS | options)
        if losses:
            scores = {name: values["score"] for name, values in result.scores["test"].items()}
            (folder / f"{name}.json").write_text(json.dumps({"losses": losses, "scores": scores}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
