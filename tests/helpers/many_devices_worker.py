"""One process of several runs on several devices, plain, regularized and with LoRA; the first one writes the scores."""

import json
import os
import sys
import zlib
from functools import partial
from pathlib import Path

import torch
from accelerate import Accelerator, PartialState
from accelerate.commands.config.config_args import load_config_from_file
from accelerate.utils import DistributedType, gather_object

from modeling_random_transformer.training.trainer import TranslationTrainer
from tests.helpers.processes import ROOT
from tests.helpers.trainer import predictions
from tests.helpers.training import UNSCORED, run

# Without dropout, whose random numbers differ between data-parallel processes.
SIZES = "d_model=16,d_ff=32,encoder_layers=1,decoder_layers=1,dropout=0.0"
OPTIONS = {
    "max_steps": 20,
    "logging_steps": 1,
    "save_steps": 20,
    "per_device_eval_batch_size": 4,
    "max_tokens_per_batch": 100,  # 11 batches: an incomplete step would differ between one and two processes
    "config_overrides": SIZES,
}
# R-Drop requires dropout; this rate drops nothing in float32.
REGULARIZATION = {
    "augment": True,
    "bpe_dropout": 0.3,
    "r_drop_alpha": 5.0,
    "average_last": 1,
    "max_steps": 6,
    "config_overrides": SIZES.replace("dropout=0.0", "dropout=1e-9"),
}
PLAIN = {"save_steps": 10, "average_last": 1, "save_total_limit": 2}  # step 10 is within an epoch
# Runs that are compared by their losses and weights.
SHORT = {**UNSCORED, "average_last": 1, "max_steps": 6}
STREAMED = {**SHORT, "streaming": True, "buffer_pairs": 50}
DROPOUT = {**SHORT, "save_steps": 3, "config_overrides": SIZES.replace("=0.0", "=0.3")}

KINDS = {
    "alone": {"gradient_accumulation_steps": 2},  # the number of batches per step of two processes
    "ddp": {},
    "fsdp": {"fsdp_size": 2},
    "fsdp2": {},  # of Accelerate
    "tp": {"tp_size": 2, "gradient_accumulation_steps": 2},
}
# Runs that are interrupted before the second of these steps, and resume from the checkpoint of the first.
INTERRUPTED = {"fsdp2": (10, 13), "fsdp2_lora": (4, 5), "ddp_dropout_resumed": (3, 4)}


def enable_fsdp2() -> None:
    """Let Accelerate use FSDP2 on CPUs. It supports listed device types only; nothing else depends on it."""
    options = load_config_from_file(str(ROOT / "examples" / "accelerate" / "fsdp2.yaml")).fsdp_config
    # As `accelerate launch` does with this file.
    os.environ["ACCELERATE_USE_FSDP"] = "true"
    os.environ.update({name.upper().replace("LAYER_CLS", "CLS"): str(value) for name, value in options.items()})
    initialize = PartialState.__init__

    def initialize_as_gpus(state: PartialState, *args: object, **kwargs: object) -> None:
        initialize(state, *args, **kwargs)
        if state.distributed_type == DistributedType.MULTI_CPU:
            state.distributed_type = DistributedType.MULTI_GPU

    PartialState.__init__ = initialize_as_gpus


def runs(folder: Path, kind: str) -> dict[str, dict]:
    """The options of each run that equals a run of one process, by its name."""
    options = {kind: PLAIN, f"{kind}_regularized": REGULARIZATION}
    if kind != "fsdp2":
        options |= {f"{kind}_streamed": STREAMED}
    if kind == "ddp":  # from the checkpoint of one process
        options |= {"ddp_resumed": PLAIN}
    if kind in ("alone", "fsdp2"):
        base = {"model_name_or_path": str(folder / "alone"), "vocab_size": None, "config_overrides": ""}
        options[f"{kind}_lora"] = {**base, "lora_rank": 2, "max_steps": 6}
    return options


def runs_with_dropout(kind: str) -> list[str]:
    """The names of the runs with dropout."""
    return {"ddp": ["ddp_dropout", "ddp_dropout_resumed"], "tp": ["tp_dropout"]}.get(kind, [])


def main(folder: Path, kind: str) -> None:
    interruptions, random_states = [], []  # steps, and the random numbers of each step

    class RecordingTrainer(TranslationTrainer):
        def training_step(self, *args: object, **kwargs: object) -> object:
            if self.state.global_step in interruptions:
                interruptions.remove(self.state.global_step)
                raise KeyboardInterrupt
            random_states.append(zlib.crc32(torch.get_rng_state().numpy().tobytes()))
            return super().training_step(*args, **kwargs)

        def predict(self, *args: object, **kwargs: object) -> object:
            """Also with a number of tokens that differs between the processes."""
            if kind == "fsdp2":
                super().predict(*args, **kwargs | {"max_new_tokens": 3 + 4 * self.args.process_index})
            return super().predict(*args, **kwargs)

    import modeling_random_transformer.training.run as module

    module.TranslationTrainer = RecordingTrainer
    if kind == "tp":
        # Accelerate supports tensor parallelism on listed device types only, without CPUs; nothing else depends on it.
        Accelerator.multi_device = True
    if kind == "fsdp2":
        enable_fsdp2()
    for name, options in (runs(folder, kind) | dict.fromkeys(runs_with_dropout(kind), DROPOUT)).items():
        if name in INTERRUPTED:
            saved, interrupted = INTERRUPTED[name]
            options = {**options, "save_steps": saved, "average_last": 1}
            interruptions.append(interrupted)
        random_states.clear()
        start = partial(run, folder, name, **KINDS[kind], **OPTIONS | options)
        try:
            result = start()
        except KeyboardInterrupt:
            result = start()
        states = gather_object([random_states])
        scores = {name: values["score"] for name, values in result.scores.get("test", {}).items()}
        write(folder / f"{name}.json", {"scores": scores, "random_states": states})
    if kind in ("alone", "ddp", "fsdp2"):
        write(folder / f"{kind}_predictions.json", predictions(folder / "predictions"))


def write(path: Path, content: object) -> None:
    if PartialState().is_main_process:
        path.write_text(json.dumps(content))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
