"""Training.

First the speed of `TranslationTrainer`, as `train` runs it: bfloat16, 5 to 30 tokens per sentence, without padding in
the count, without evaluation and saving. Batches of `base` have the paper's tokens, those of `low_resource.yaml` 4,096,
with Muon. `--cuda_graphs` captures the passes of each shape at its second batch, and `--torch_compile` compiles each
new shape or a shape of variable sizes. The first third of the steps, in which most of that happens, is not timed. Then
the weights after a few steps with `--cuda_graphs` in float32, against those without it: kernels that add in any order
let them differ. Last the speedup of a training step: 32 + 32 tokens per pair, a quarter of them padding, dropout 0.1,
label smoothing 0.1, gradient clipping, fused AdamW.
"""

import sys
import tempfile
import time
from contextlib import redirect_stdout
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from modeling_random_transformer.training import TranslationTrainer

from ..generate import DEVICE, DTYPES
from ..models import TRAINED, VOCAB_SIZE, ours
from ..train import Batch, make_batch, trainer
from ..trainer import translation_trainer
from .parts import PAIRED_COLUMNS, Figures, Rows, checked, compare, preset_model
from .settings import Settings

COLUMNS = {
    "difference": "{:.1e}",
    "tolerance": "{:.0e}",
    "tokens/s": "{:,.0f}",
    "step, ms": "{:,.1f}",
    "padding": "{:.1%}",
    "shapes": "{}",
    "start, s": "{:,.1f}",
    **PAIRED_COLUMNS,
}
DROPOUT = 0.1
PEERS = ("Marian", "nn.Transformer")
LOW_RESOURCE_TRAINING = {"muon": True, "learning_rate": 3e-3, "weight_decay": 0.5, "max_tokens_per_batch": 4096}


def rows(settings: Settings) -> Rows:
    preset, overrides = next(iter(settings.presets.items()))
    budget = {"max_tokens_per_batch": 2 * settings.batch_tokens}
    for suffix, launches in launch_options(settings).items():
        large = partial(measure_trainer, preset, overrides, budget | launches, settings)
        yield f"`train`, {preset}{suffix}", large
        small = partial(measure_trainer, "tiny", settings.low_resource, LOW_RESOURCE_TRAINING | launches, settings)
        yield f"`train`, low_resource.yaml{suffix}", small
    if DEVICE == "cuda":
        yield "weights, --cuda_graphs, fp32", partial(check_captured, settings)
    batch = make_batch(settings.training_batch)
    for (name, size), dtype in product(settings.sizes.items(), settings.training_dtypes):
        mine = trainer(ours(size, DROPOUT), batch, DTYPES[dtype], own_loss=True)
        for peer in PEERS:
            theirs = trainer(TRAINED[peer](size, DROPOUT), batch, DTYPES[dtype], own_loss=False)
            yield f"{name} {dtype}, over {peer}", partial(compare, mine, theirs, settings.pairs)


def launch_options(settings: Settings) -> dict[str, dict[str, Any]]:
    """By the suffix of a label: how the kernels of a step are launched."""
    options: dict[str, dict[str, Any]] = {"": {}}
    if DEVICE == "cuda":
        options[", --cuda_graphs"] = {"cuda_graphs": True}
    options[", --torch_compile"] = {"torch_compile": True, "torch_compile_backend": settings.backend}
    return options


class Clock(TrainerCallback):
    """Times the steps of a trainer after the first third, and counts the tokens and shapes of their batches."""

    def __init__(self, trainer: Any, steps: int):
        self.warm_up = steps // 3
        self.steps = steps - self.warm_up
        self.begin = time.perf_counter()
        self.tokens: list[Tensor] = []  # numbers of tokens without padding
        self.shapes: list[tuple[torch.Size, torch.Size]] = []  # shapes of source and target
        self.training_step = trainer.training_step
        trainer.training_step = self.count_and_train

    def count_and_train(self, model: Any, inputs: Batch, *args: Any) -> Tensor:
        source, target = inputs["attention_mask"], inputs["labels"]
        self.tokens.append(source.sum() + target.ne(-100).sum())
        self.shapes.append((source.shape, target.shape))
        return self.training_step(model, inputs, *args)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:  # noqa: ARG002
        if state.global_step == self.warm_up:
            self.start_seconds = self.seconds()

    def seconds(self) -> float:
        """Since the beginning, when the device has finished."""
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - self.begin

    def figures(self) -> Figures:
        seconds = self.seconds() - self.start_seconds
        tokens = int(torch.stack(self.tokens[self.warm_up :]).sum())
        padded = sum(shape.numel() for shapes in self.shapes[self.warm_up :] for shape in shapes)
        return {
            "tokens/s": tokens / seconds,
            "step, ms": 1000 * seconds / self.steps,
            "padding": 1 - tokens / padded,
            "shapes": len(set(self.shapes)),
            "start, s": self.start_seconds,
        }


def measure_trainer(preset: str, config: dict[str, Any], options: dict[str, Any], settings: Settings) -> Figures:
    torch.compiler.reset()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
        options = options | {"max_steps": settings.trainer_steps, "bf16": settings.training_dtypes[0] == "bf16"}
        run = preset_trainer(folder, preset, config, options, settings)
        clock = Clock(run, settings.trainer_steps)
        run.add_callback(clock)
        run.train()
        return clock.figures()


def preset_trainer(
    folder: str, preset: str, config: dict[str, Any], options: dict[str, Any], settings: Settings
) -> TranslationTrainer:
    model = preset_model(preset, config | {"vocab_size": VOCAB_SIZE})
    return translation_trainer(model, folder, pairs=settings.sentence_pairs // 10, **options)


def check_captured(settings: Settings) -> Figures:
    """The largest relative difference of a weight after training with and without graphs."""
    weights = []
    for cuda_graphs in (False, True):
        options = LOW_RESOURCE_TRAINING | {"max_steps": settings.check_steps, "cuda_graphs": cuda_graphs}
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(sys.stderr):
            run = preset_trainer(folder, "tiny", settings.low_resource, options, settings)
            run.train()
        weights.append([weight.detach() for weight in run.model.parameters()])
    differences = [(captured - usual).norm() / usual.norm() for usual, captured in zip(*weights, strict=True)]
    return checked({}, max(differences).item(), 1e-2)
