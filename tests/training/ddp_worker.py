"""What each process of a data-parallel run does: twenty steps, whose losses the first process writes."""

import json
import sys
from pathlib import Path

from test_run import run

from modeling_random_transformer.training.trainer import TranslationTrainer

# Without dropout, which every process draws for itself.
SIZES = "d_model=16,d_ff=32,encoder_layers=1,decoder_layers=1,dropout=0.0"
OPTIONS = {
    "max_steps": 20,
    "logging_steps": 1,
    "save_strategy": "no",
    "max_tokens_per_batch": 90,  # which makes an even number of batches, so that both runs have the same
    "config_overrides": SIZES,
}


def main(folder: Path, output: str, accumulation: int) -> None:
    losses = []

    class Noted(TranslationTrainer):
        def log(self, logs: dict, *args: object, **kwargs: object) -> None:
            if "loss" in logs and self.is_world_process_zero():
                losses.append(logs["loss"])
            super().log(logs, *args, **kwargs)

    import modeling_random_transformer.training.run as module

    module.TranslationTrainer = Noted
    run(folder, output, gradient_accumulation_steps=accumulation, **OPTIONS)
    if losses:
        (folder / f"{output}.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
