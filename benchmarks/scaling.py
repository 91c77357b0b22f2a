"""Latency of a decoding step at 512 tokens relative to 64, batch 8, compared with Marian."""

import argparse
import statistics
import time
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from .generate import DEVICE, SOURCE_LEN
from .models import END, GENERATORS, SIZES, START, VOCAB_SIZE

NEAR, FAR, WINDOW = 64, 512, 12  # lengths in tokens; WINDOW steps on each side of a length are timed


class Clock(LogitsProcessor):
    """Records the time at which the scores of each token are available."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # noqa: ARG002
        if scores.device.type == "cuda":
            torch.cuda.synchronize()
        self.times.append(time.perf_counter())
        return scores

    def step_at(self, length: int) -> float:
        """Median seconds of the steps around `length` tokens."""
        times = self.times[length - WINDOW : length + WINDOW]
        return statistics.median(later - earlier for earlier, later in pairwise(times))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--size", choices=SIZES, default="base", help="model size")
    parser.add_argument("--batch", type=int, default=8, help="batch size")
    parser.add_argument("--beams", type=int, default=1, help="number of beams")
    parser.add_argument("--runs", type=int, default=5, help="number of runs of each model")


def run(options: argparse.Namespace) -> None:
    torch.manual_seed(0)
    ids = torch.randint(END + 1, VOCAB_SIZE, (options.batch, SOURCE_LEN), device=DEVICE)
    models = {name: make(SIZES[options.size]).to(DEVICE).eval() for name, make in GENERATORS.items()}
    ratios: dict[str, list[float]] = {name: [] for name in models}
    for _ in range(options.runs):
        for name, model in models.items():
            clock = timed(model, ids, options.beams)
            ratios[name].append(clock.step_at(FAR) / clock.step_at(NEAR))
            print(f"{name}: {clock.step_at(NEAR) * 1000:.1f} ms, {clock.step_at(FAR) * 1000:.1f} ms", flush=True)
    for name, measured_ratios in ratios.items():
        spread = f"{min(measured_ratios):.2f} to {max(measured_ratios):.2f}"
        print(f"{name}: step at {FAR} tokens over step at {NEAR}: {statistics.median(measured_ratios):.2f} ({spread})")


@torch.inference_mode()
def timed(model: Any, ids: Tensor, num_beams: int) -> Clock:
    clock = Clock()
    model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        num_beams=num_beams,
        do_sample=False,
        eos_token_id=None,
        max_new_tokens=FAR + WINDOW,
        decoder_start_token_id=START,
        logits_processor=LogitsProcessorList([clock]),
    )
    return clock
