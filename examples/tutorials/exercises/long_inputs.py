"""Exercise 16: local, strided, linear and low-rank attention for long inputs (paper 4, "restricted" self-attention)."""

import time
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForCausalLM, AutoModelForTokenClassification

import modeling_random_transformer  # noqa: F401  (registers the Auto classes)

from .. import long_attention
from ..report import BLUE, GRAY, GREEN, ORANGE, PURPLE, RED, format_axes, save_plot, show_table
from .tasks import FIRST_SYMBOL, Batch, tiny_model, train

LENGTHS = (512, 1024, 2048, 4096, 8192)
COST_SIZES = {"num_heads": 2}  # two heads with d_k = 32
MAX_EAGER_LENGTH = 4096  # the weights of two heads are 512 MB at 8,192 tokens
# Implementations that are registered with transformers, and their labels.
IMPLEMENTATIONS = {
    "eager": "eager",
    "sdpa": "SDPA",
    "local_attention": "local",
    "strided_attention": "strided",
    "linear_attention": "linear",
    "low_rank_attention": "low-rank",
}
COLORS = dict(zip(IMPLEMENTATIONS, (GRAY, BLUE, ORANGE, GREEN, RED, PURPLE), strict=True))
COPY_LENGTHS = (6, 20, 24)
COPY_SPAN = 8  # two layers of local attention reach 16 positions
COPY_SIZES: dict[str, Any] = {"encoder_layers": 2, "decoder_layers": 2, "num_heads": 2, "norm_order": "pre"}
SEPARATOR = 1
# The attention of the copy task: an implementation for each one of the cost, with a span for short sequences. Low-rank
# attention is not causal.
COPY_IMPLEMENTATIONS = {
    "sdpa": "sdpa",
    "local_attention": "copy_local",
    "strided_attention": "copy_strided",
    "linear_attention": "copy_linear",
}
NAMED_LENGTH, NAMED_SYMBOLS = 32, 16
NAMED_RANKS = (32, 16, 8)  # ranks for 32 tokens: segments of 1, 2 and 4 tokens
long_attention.register("copy_local", long_attention.local_attention, window=COPY_SPAN)
long_attention.register("copy_strided", long_attention.strided_attention, stride=COPY_SPAN)
long_attention.register("copy_linear", long_attention.linear_attention, features=64)


@dataclass(frozen=True)
class Copying:
    """A language modeling task: random symbols, a separator, and the same symbols again."""

    length: int
    symbols: int = 16

    def sample(self, count: int) -> Batch:
        """Ids and labels, `[count, 2 · length + 2]`. Only the copied symbols have labels."""
        symbols = torch.randint(FIRST_SYMBOL, FIRST_SYMBOL + self.symbols, (count, self.length))
        separator = torch.full((count, 1), SEPARATOR)
        ids = torch.cat([separator, symbols, separator, symbols], dim=1)
        return ids, ids.index_fill(1, torch.arange(self.length + 2), -100)


@dataclass
class Cost:
    """Median process time in milliseconds, and the largest total size of the tensors in MB."""

    milliseconds: float
    megabytes: float


@dataclass
class LongInputResult:
    """Measurements by implementation.

    Attributes:
        costs: of an encoder pass, by length.
        accuracy: the fraction of correctly copied symbols, by length.
        named: the fraction of correctly named symbols with low-rank attention, by rank.
    """

    costs: dict[str, dict[int, Cost]] = field(default_factory=dict)
    accuracy: dict[str, dict[int, float]] = field(default_factory=dict)
    named: dict[int, float] = field(default_factory=dict)


def experiment(
    seed: int,
    lengths: Sequence[int] = LENGTHS,
    copy_lengths: Sequence[int] = COPY_LENGTHS,
    repeats: int = 3,
    steps: int = 250,
) -> LongInputResult:
    result = LongInputResult({name: {} for name in IMPLEMENTATIONS}, {name: {} for name in COPY_IMPLEMENTATIONS})
    for length in lengths:
        for name, cost in measure_costs(length, seed, repeats).items():
            result.costs[name][length] = cost
    for length in copy_lengths:
        for name, implementation in COPY_IMPLEMENTATIONS.items():
            result.accuracy[name][length] = learn_to_copy(implementation, length, seed, steps)
    result.named = {rank: learn_to_name(rank, seed, steps) for rank in NAMED_RANKS}
    return result


# Cost


@torch.no_grad()
def measure_costs(length: int, seed: int, repeats: int) -> dict[str, Cost]:
    """The cost of an encoder pass over one random sequence, by implementation. The implementations alternate."""
    model = tiny_model(100, seed, **COST_SIZES)
    ids = torch.randint(FIRST_SYMBOL, 100, (1, length))
    names = [name for name in IMPLEMENTATIONS if name != "eager" or length <= MAX_EAGER_LENGTH]
    memory: dict[str, float] = {}
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for name in names:
        model.set_attn_implementation(name)
        with PeakMemory() as peak_memory:
            model.model.encoder(ids)
        memory[name] = peak_memory.peak / 1e6
    for _ in range(repeats):
        for name in names:
            model.set_attn_implementation(name)
            start = time.process_time()
            model.model.encoder(ids)
            seconds[name].append(time.process_time() - start)
    return {name: Cost(1000 * median(seconds[name]), memory[name]) for name in names}


class PeakMemory(TorchDispatchMode):
    """Records the largest total size of the tensors that the operations within the block return and that are in use.

    Memory that a kernel frees before it returns is not included.
    """

    def __init__(self) -> None:
        super().__init__()
        self.users: Counter[int] = Counter()  # number of tensors by storage: views share one
        self.total = self.peak = 0  # bytes

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(outputs):
            if isinstance(tensor, Tensor):
                self.add(tensor)
        return outputs

    def add(self, tensor: Tensor) -> None:
        storage, size = tensor.untyped_storage()._cdata, tensor.untyped_storage().nbytes()
        if not self.users[storage]:
            self.total += size
            self.peak = max(self.peak, self.total)
        self.users[storage] += 1
        weakref.finalize(tensor, self.remove, storage, size)

    def remove(self, storage: int, size: int) -> None:
        self.users[storage] -= 1
        if not self.users[storage]:
            self.total -= size


# Quality


def learn_to_copy(implementation: str, length: int, seed: int, steps: int) -> float:
    """Train a decoder without an encoder to copy, and return the fraction of symbols that it predicts correctly."""
    task = Copying(length)
    config = tiny_model(FIRST_SYMBOL + task.symbols, seed, **COPY_SIZES).config
    model = AutoModelForCausalLM.from_config(config)
    model.set_attn_implementation(implementation)
    train(model, lambda: task.sample(32), steps, learning_rate=5e-3)
    ids, labels = task.sample(200)
    with torch.no_grad():
        predicted = model(input_ids=ids).logits[:, :-1].argmax(dim=-1)  # each position predicts the next token
    copied = labels[:, 1:] != -100
    return (predicted == labels[:, 1:])[copied].float().mean().item()


def learn_to_name(rank: int, seed: int, steps: int) -> float:
    """Train an encoder with low-rank attention to name the symbol before each one. The accuracy on new sequences."""
    config = tiny_model(FIRST_SYMBOL + NAMED_SYMBOLS, seed).config
    config.num_labels = NAMED_SYMBOLS
    model = AutoModelForTokenClassification.from_config(config)
    long_attention.register(f"rank_{rank}", long_attention.low_rank_attention, rank=rank)
    model.set_attn_implementation(f"rank_{rank}")

    def sample(count: int) -> Batch:
        symbols = torch.randint(NAMED_SYMBOLS, (count, NAMED_LENGTH))
        return FIRST_SYMBOL + symbols, symbols.roll(1, dims=1)

    train(model, lambda: sample(64), steps)
    ids, labels = sample(500)
    with torch.no_grad():
        return (model(input_ids=ids).logits.argmax(dim=-1) == labels).float().mean().item()


# Output


def show(result: LongInputResult, folder: Path) -> None:
    lengths = sorted({length for costs in result.costs.values() for length in costs})
    columns = ("tokens", *IMPLEMENTATIONS.values())
    for title, attribute in (("Process time in ms", "milliseconds"), ("Peak memory in MB", "megabytes")):
        rows = [
            (f"{length:,}", *(cost_text(costs.get(length), attribute) for costs in result.costs.values()))
            for length in lengths
        ]
        show_table(f"{title} of an encoder layer", columns, rows)
    copies = [
        (IMPLEMENTATIONS[name], *(f"{accuracy:.1%}" for accuracy in accuracies.values()))
        for name, accuracies in result.accuracy.items()
    ]
    distances = (f"{length} positions back" for length in next(iter(result.accuracy.values())))
    show_table("Correctly copied symbols", ("attention", *distances), copies)
    rows = [(str(rank), str(NAMED_LENGTH // rank), f"{accuracy:.1%}") for rank, accuracy in result.named.items()]
    show_table("Correctly named previous symbols of an encoder", ("low rank", "tokens per segment", "accuracy"), rows)
    save_plot(draw(result), folder / "long_inputs.png")


def cost_text(cost: Cost | None, attribute: str) -> str:
    return "—" if cost is None else f"{getattr(cost, attribute):.1f}"


def draw(result: LongInputResult) -> Figure:
    figure = Figure(figsize=(11, 3.8), layout="constrained")
    seconds, memory, accuracy = figure.subplots(1, 3)
    for name, costs in result.costs.items():
        for axes, attribute in ((seconds, "milliseconds"), (memory, "megabytes")):
            values = [getattr(cost, attribute) for cost in costs.values()]
            axes.plot(list(costs), values, color=COLORS[name], label=IMPLEMENTATIONS[name], marker="o", markersize=4)
    for axes in (seconds, memory):
        axes.set(xscale="log", yscale="log", xlabel="tokens")
        lengths = sorted({length for costs in result.costs.values() for length in costs})
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.minorticks_off()
    seconds.legend(frameon=False)
    width = 1 / (len(result.accuracy) + 1)
    for index, (name, accuracies) in enumerate(result.accuracy.items()):
        places = [place + index * width for place in range(len(accuracies))]
        accuracy.bar(places, [100 * value for value in accuracies.values()], width, color=COLORS[name])
    lengths = list(next(iter(result.accuracy.values())))
    centers = [place + (len(result.accuracy) - 1) / 2 * width for place in range(len(lengths))]
    accuracy.set_xticks(centers, [f"{length} back" for length in lengths])
    format_axes(seconds, "Process time, ms")
    format_axes(memory, "Peak memory, MB")
    format_axes(accuracy, "Correctly copied symbols, %")
    return figure
