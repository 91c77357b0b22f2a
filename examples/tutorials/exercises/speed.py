"""Exercise 5: the speed of encoder and decoder."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration
from modeling_random_transformer.extras.inspection import trace

from ..report import BLUE, GRAY, ORANGE, RED, format_axes, save_plot, show_table

LENGTHS = (8, 16, 32, 64, 128)
VOCAB_SIZE = 10_000
ENCODER = "encoder"
ONE_PASS = "decoder, one pass"  # as in training: the complete target is known
CACHED, UNCACHED = "generate, cache", "generate, no cache"
COLORS = {ENCODER: BLUE, ONE_PASS: GRAY, CACHED: ORANGE, UNCACHED: RED}


@dataclass
class Work:
    """The number of forward passes of a stack, and of positions that it computes in all of them."""

    passes: int
    positions: int


@dataclass
class SpeedResult:
    """The work and the median process time of each method, in the order of `lengths`."""

    lengths: Sequence[int]
    work: dict[str, list[Work]] = field(default_factory=dict)
    milliseconds: dict[str, list[float]] = field(default_factory=dict)


@torch.no_grad()
def experiment(seed: int, lengths: Sequence[int] = LENGTHS, repeats: int = 5) -> SpeedResult:
    """Encode a source of each length, and generate a target of the same length."""
    torch.manual_seed(seed)
    config = RandomTransformerConfig.from_preset("tiny", vocab_size=VOCAB_SIZE)
    model = RandomTransformerForConditionalGeneration(config).eval()
    result = SpeedResult(lengths)
    by_length = [methods(model, *torch.randint(4, VOCAB_SIZE, (2, 1, length))) for length in lengths]
    seconds = time_in_rounds(by_length, repeats)
    for name in by_length[0]:
        stack = "encoder" if name == ENCODER else "decoder"
        result.work[name] = [count_work(model, computations[name], stack) for computations in by_length]
        result.milliseconds[name] = [1000 * median(times[name]) for times in seconds]
    return result


def methods(
    model: RandomTransformerForConditionalGeneration, source: Tensor, target: Tensor
) -> dict[str, Callable[[], Any]]:
    """The methods to compare, for a source and a target `[1, length]`. The decoder's source is encoded beforehand."""
    encoded = model.model.encoder(source)
    length = target.shape[1]
    options = {"encoder_outputs": encoded, "min_new_tokens": length, "max_new_tokens": length, "do_sample": False}
    return {
        ENCODER: lambda: model.model.encoder(source),
        ONE_PASS: lambda: model.model.decoder(target, encoder_hidden_states=encoded.last_hidden_state),
        CACHED: lambda: model.generate(source, **options),
        UNCACHED: lambda: model.generate(source, use_cache=False, **options),
    }


def count_work(model: RandomTransformerForConditionalGeneration, run: Callable[[], Any], stack: str) -> Work:
    with trace(model, layers=[]) as recorded:
        run()
    lengths = [ids.shape[1] for ids in recorded.select(f"*{stack}.embedding.ids").values()]
    return Work(passes=len(lengths), positions=sum(lengths))


def time_in_rounds(by_length: list[dict[str, Callable[[], Any]]], repeats: int) -> list[dict[str, list[float]]]:
    """The process time of each computation in seconds, which excludes the load of other processes."""
    seconds: list[dict[str, list[float]]] = [{name: [] for name in computations} for computations in by_length]
    for _ in range(repeats + 1):
        for computations, times in zip(by_length, seconds, strict=True):
            for name, run in computations.items():
                start = time.process_time()
                run()
                times[name].append(time.process_time() - start)
    return [{name: every[1:] for name, every in times.items()} for times in seconds]  # the first round is a warm-up


def show(result: SpeedResult, folder: Path) -> None:
    columns = ("tokens", *map(str, result.lengths))
    work = [
        (name, *(f"{done.positions:,} / {done.passes:,}" for done in work_by_length))
        for name, work_by_length in result.work.items()
    ]
    show_table("Positions computed / forward passes", columns, work)
    times = [(name, *(f"{median:.1f}" for median in medians)) for name, medians in result.milliseconds.items()]
    show_table("Median process time, ms", columns, times)
    save_plot(draw(result), folder / "decoder_speed.png")


def draw(result: SpeedResult) -> Figure:
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, times in reversed(result.milliseconds.items()):  # legend order: the slowest first
        axes.plot(result.lengths, times, label=name, color=COLORS[name], linewidth=2, marker="o", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(result.lengths, [str(length) for length in result.lengths])
    axes.set(xlabel="tokens", ylabel="milliseconds")
    format_axes(axes, "Time for one sentence (tiny preset)")
    figure.legend(loc="outside right center", frameon=False)
    return figure
