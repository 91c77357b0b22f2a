"""Exercise 5: why the decoder is slower than the encoder."""

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
from modeling_random_transformer.tracing import trace

from .report import BLUE, GRAY, ORANGE, console, show_table

LENGTHS = (8, 16, 32, 64, 128)
VOCAB_SIZE = 10_000
ENCODER = "encoder"
ONE_PASS = "decoder, one pass"  # as in training, with all tokens of the target given
CACHED, UNCACHED = "generate, cache", "generate, no cache"
COLORS = {ENCODER: BLUE, ONE_PASS: GRAY, CACHED: ORANGE, UNCACHED: "#a83232"}


@dataclass
class Work:
    """How many passes a stack makes, and how many positions it computes in all of them."""

    passes: int
    positions: int


@dataclass
class SpeedResult:
    """By way of computing, in the order of `lengths`: what was done, and the median processor time."""

    lengths: Sequence[int]
    work: dict[str, list[Work]] = field(default_factory=dict)
    milliseconds: dict[str, list[float]] = field(default_factory=dict)


@torch.no_grad()
def compare_speeds(seed: int, lengths: Sequence[int] = LENGTHS, repeats: int = 5) -> SpeedResult:
    """A source of each length through the encoder, and a target of the same length out of the decoder."""
    torch.manual_seed(seed)
    config = RandomTransformerConfig.from_preset("tiny", vocab_size=VOCAB_SIZE)
    model = RandomTransformerForConditionalGeneration(config).eval()
    result = SpeedResult(lengths)
    by_length = [ways(model, *torch.randint(4, VOCAB_SIZE, (2, 1, length))) for length in lengths]
    seconds = time_in_rounds(by_length, repeats)
    for name in by_length[0]:
        stack = "encoder" if name == ENCODER else "decoder"
        result.work[name] = [count_work(model, computations[name], stack) for computations in by_length]
        result.milliseconds[name] = [1000 * median(times[name]) for times in seconds]
    return result


def ways(
    model: RandomTransformerForConditionalGeneration, source: Tensor, target: Tensor
) -> dict[str, Callable[[], Any]]:
    """What is compared. The source of the decoder, `[1, length]` as the target, is encoded before."""
    encoded = model.model.encoder(source)
    length = target.shape[1]
    options = {"encoder_outputs": encoded, "min_new_tokens": length, "max_new_tokens": length, "do_sample": False}
    return {
        ENCODER: lambda: model.model.encoder(source),
        ONE_PASS: lambda: model.model.decoder(target, encoder_hidden_states=encoded.last_hidden_state),
        CACHED: lambda: model.generate(source, **options),
        UNCACHED: lambda: model.generate(source, use_cache=False, **options),
    }


def count_work(model: RandomTransformerForConditionalGeneration, compute: Callable[[], Any], stack: str) -> Work:
    with trace(model, layers=[]) as found:
        compute()
    lengths = [ids.shape[1] for ids in found.select(f"*{stack}.embedding.ids").values()]
    return Work(passes=len(lengths), positions=sum(lengths))


def time_in_rounds(by_length: list[dict[str, Callable[[], Any]]], repeats: int) -> list[dict[str, list[float]]]:
    """Seconds that each computation keeps the processor busy: what else runs on the machine does not count."""
    seconds: list[dict[str, list[float]]] = [{name: [] for name in computations} for computations in by_length]
    for _ in range(repeats + 1):
        for computations, times in zip(by_length, seconds, strict=True):
            for name, compute in computations.items():
                start = time.process_time()
                compute()
                times[name].append(time.process_time() - start)
    return [{name: every[1:] for name, every in times.items()} for times in seconds]  # the first round only warms up


def show_speeds(result: SpeedResult, folder: Path) -> None:
    columns = ("tokens", *map(str, result.lengths))
    work = [(name, *(f"{done.positions:,} / {done.passes:,}" for done in every)) for name, every in result.work.items()]
    show_table("Positions computed / in so many passes", columns, work)
    times = [(name, *(f"{each:.1f}" for each in every)) for name, every in result.milliseconds.items()]
    show_table("Median processor time, ms", columns, times)
    path = folder / "decoder_speed.png"
    draw_speeds(result, path)
    console.print(f"Picture: {path}", soft_wrap=True)


def draw_speeds(result: SpeedResult, path: Path) -> None:
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, times in reversed(result.milliseconds.items()):  # the slowest on top, as in the picture
        axes.plot(result.lengths, times, label=name, color=COLORS[name], linewidth=2, marker="o", markersize=4)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(result.lengths, [str(length) for length in result.lengths])
    axes.set(xlabel="tokens", ylabel="milliseconds")
    axes.set_title("One sentence through the tiny preset", loc="left", fontweight="bold")
    axes.grid(axis="y", color="#e6e6e6")
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right center", frameon=False)
    figure.savefig(path, dpi=110)
