"""Exercise 9: self-attention, recurrence and convolution (paper 4, Table 1)."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode
from torch.utils.weak import WeakTensorKeyDictionary

from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer.modeling_random_transformer import RandomTransformerAttention

from ..report import BLUE, GRAY, GREEN, ORANGE, RED, format_axes, save_plot, show_table

KERNEL = 3
SIZES = ((256, 64), (2048, 64), (256, 512))  # (n, d): base, longer, wider
LENGTHS, WIDTH = (16, 64, 256), 64  # sizes for the steps, paths and times
RECALL_LENGTHS, RECALL_LAYERS, RECALL_WIDTH = (4, 16, 64), 4, 32
SYMBOLS, NOISE = 8, 8  # tokens of the recall task: the first is a symbol, the others are noise
ATTENTION, RECURRENCE, CONVOLUTION, DILATED = "self-attention", "recurrence", "convolution", "dilated convolution"
COLORS = {ATTENTION: BLUE, RECURRENCE: ORANGE, CONVOLUTION: GREEN, DILATED: RED}
PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "convolution"}  # the operations with two matrices


# Layers: states [batch, length, width] -> states of the same shape


class SelfAttention(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        config = RandomTransformerConfig(d_model=width, num_heads=1, attn_implementation="eager")
        self.attention = RandomTransformerAttention(config, layer_idx=0)

    def forward(self, states: Tensor) -> Tensor:
        return self.attention(states)[0]


class Recurrence(nn.Module):
    """A network with one tanh layer per step (Elman 1990)."""

    def __init__(self, width: int):
        super().__init__()
        self.cell = nn.RNNCell(width, width)

    def forward(self, states: Tensor) -> Tensor:
        hidden, outputs = torch.zeros_like(states[:, 0]), []
        for step in states.unbind(dim=1):
            hidden = self.cell(step, hidden)
            outputs.append(hidden)
        return torch.stack(outputs, dim=1)


class Convolution(nn.Module):
    """A causal convolution: each output depends on `KERNEL` states, `dilation` apart, up to its own."""

    def __init__(self, width: int, dilation: int = 1):
        super().__init__()
        self.padding = (KERNEL - 1) * dilation
        self.conv = nn.Conv1d(width, width, KERNEL, dilation=dilation)

    def forward(self, states: Tensor) -> Tensor:
        return self.conv(nn.functional.pad(states.transpose(1, 2), (self.padding, 0))).transpose(1, 2)


# Kind of layer → function of a layer's index and width that builds the layer.
KINDS: dict[str, Callable[[int, int], nn.Module]] = {
    ATTENTION: lambda _, width: SelfAttention(width),
    RECURRENCE: lambda _, width: Recurrence(width),
    CONVOLUTION: lambda _, width: Convolution(width),
    DILATED: lambda index, width: Convolution(width, dilation=KERNEL**index),
}


class Cost(NamedTuple):
    """Of a layer, by length.

    Attributes:
        steps: the longest chain of matrix products that depend on each other.
        path: the number of steps from the first token to the last state.
        milliseconds: median process time of a forward pass.
    """

    steps: int
    path: int
    milliseconds: float


@dataclass
class ComplexityResult:
    """Measurements by kind of layer.

    Attributes:
        operations: multiplications and additions of a layer, by (length, width).
        costs: by length, for `WIDTH`.
        gradient: the norm of the last state's gradient with respect to each token, `[length]`, for stacks of
            `RECALL_LAYERS` layers and the largest of `RECALL_LENGTHS`.
        recall: the fraction of correct predictions of the first token at the last position, by length.
    """

    operations: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)
    costs: dict[str, dict[int, Cost]] = field(default_factory=dict)
    gradient: dict[str, list[float]] = field(default_factory=dict)
    recall: dict[str, dict[int, float]] = field(default_factory=dict)


def experiment(seed: int, lengths: Sequence[int] = LENGTHS, training_steps: int = 200) -> ComplexityResult:
    result = ComplexityResult()
    for kind in KINDS:
        torch.manual_seed(seed)
        result.gradient[kind] = token_gradients(kind, RECALL_LENGTHS[-1])
        result.recall[kind] = {length: train_recall(kind, length, seed, training_steps) for length in RECALL_LENGTHS}
        if kind != DILATED:
            result.operations[kind] = {size: count_operations(kind, *size) for size in SIZES}
        result.costs[kind] = {length: measure_cost(kind, length) for length in lengths}
    return result


# Operations, sequential steps, path length


def count_operations(kind: str, length: int, width: int) -> int:
    """Of one sentence and one layer, on PyTorch's meta device, which computes shapes only.

    As in Table 1, the linear projections of attention are not counted.
    """
    with torch.device("meta"):
        layer, states = KINDS[kind](0, width), torch.empty(1, length, width)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        layer(states)
    per_module = counter.get_flop_counts()
    projections = [flops for name, flops in per_module.items() if name.endswith("_proj")]
    return counter.get_total_flops() - sum(sum(flops.values()) for flops in projections)


class ChainLength(TorchDispatchMode):
    """Records, for each tensor, the longest chain of matrix products that it depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.chains = WeakTensorKeyDictionary()

    def __torch_dispatch__(self, function: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        outputs = function(*args, **(kwargs or {}))
        flat = [x for arg in args for x in (arg if isinstance(arg, list | tuple) else [arg])]
        longest = max((self.chains.get(x, 0) for x in flat if isinstance(x, Tensor)), default=0)
        longest += function.overloadpacket.__name__ in PRODUCTS
        for output in outputs if isinstance(outputs, list | tuple) else [outputs]:
            if isinstance(output, Tensor):
                self.chains[output] = longest
        return outputs


@torch.no_grad()
def measure_cost(kind: str, length: int) -> Cost:
    layer, states = KINDS[kind](0, WIDTH), torch.randn(1, length, WIDTH)
    with ChainLength() as mode:
        output = layer(states)
    steps = mode.chains[output]
    seconds = []
    for _ in range(6):
        start = time.process_time()
        layer(states)
        seconds.append(time.process_time() - start)
    # A recurrent layer passes the first token through all of its steps, a stack of the others through its layers.
    path = steps if kind == RECURRENCE else layers_to_reach(kind, length)
    return Cost(steps, path, 1000 * median(seconds[1:]))


@torch.no_grad()
def layers_to_reach(kind: str, length: int) -> int:
    """How many layers must be stacked until the last state depends on the first token.

    Forward-mode differentiation shows which states depend on it: their derivative is not exactly zero.
    """
    states, direction = torch.randn(1, length, 4).double(), torch.zeros(1, length, 4).double()
    direction[:, 0] = 1
    with forward_ad.dual_level():
        states = forward_ad.make_dual(states, direction)
        for count in range(1, length + 1):
            states = KINDS[kind](count - 1, 4).double()(states)
            if forward_ad.unpack_dual(states).tangent[0, -1].any():
                return count
    raise ValueError(f"kind must be a layer whose stacks reach all tokens, got {kind!r}.")


# Gradients, and a task that needs the first token


class Stack(nn.Module):
    """Embedding, layers with residual connections and layer norm, and the logits of the last state."""

    def __init__(self, kind: str):
        super().__init__()
        self.embedding = nn.Embedding(SYMBOLS + NOISE, RECALL_WIDTH)
        self.layers = nn.ModuleList(KINDS[kind](index, RECALL_WIDTH) for index in range(RECALL_LAYERS))
        self.norms = nn.ModuleList(nn.LayerNorm(RECALL_WIDTH) for _ in range(RECALL_LAYERS))
        self.output = nn.Linear(RECALL_WIDTH, SYMBOLS)

    def encode(self, states: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            states = norm(states + layer(states).relu())
        return states

    def forward(self, ids: Tensor) -> Tensor:
        return self.output(self.encode(self.embedding(ids))[:, -1])


def token_gradients(kind: str, length: int) -> list[float]:
    """The norm of the last state's gradient with respect to each token's embedding, in a random stack."""
    stack = Stack(kind).double()
    tokens = torch.randn(8, length, RECALL_WIDTH, dtype=torch.float64, requires_grad=True)
    states = stack.encode(tokens)[:, -1]
    (gradient,) = torch.autograd.grad(states, tokens, torch.randn_like(states))
    return gradient.norm(dim=-1).mean(dim=0).tolist()


def train_recall(kind: str, length: int, seed: int, steps: int) -> float:
    """Train a stack to name the first token at the last position. The accuracy on 1,000 new sequences."""
    torch.manual_seed(seed)
    stack = Stack(kind)
    optimizer = torch.optim.Adam(stack.parameters(), lr=3e-3)
    for _ in range(steps):
        ids = sample_recall(32, length)
        nn.functional.cross_entropy(stack(ids), ids[:, 0]).backward()
        nn.utils.clip_grad_norm_(stack.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    ids = sample_recall(1000, length)
    with torch.no_grad():
        return (stack(ids).argmax(dim=-1) == ids[:, 0]).float().mean().item()


def sample_recall(count: int, length: int) -> Tensor:
    """A symbol followed by noise: ids `[count, length]`."""
    noise = torch.randint(SYMBOLS, SYMBOLS + NOISE, (count, length - 1))
    return torch.cat([torch.randint(SYMBOLS, (count, 1)), noise], dim=1)


# Output


def show(result: ComplexityResult, folder: Path) -> None:
    sizes = [f"n = {length}, d = {width}" for length, width in SIZES]
    rows = [(kind, *(f"{count:,}" for count in by_size.values())) for kind, by_size in result.operations.items()]
    show_table("Operations of a layer", ("", *sizes), rows)
    for title, name in (
        ("Sequential steps of a layer", "steps"),
        ("Path from the first token to the last state", "path"),
        (f"Process time of a layer, ms (d = {WIDTH})", "milliseconds"),
    ):
        costs = {kind: [getattr(cost, name) for cost in by_length.values()] for kind, by_length in result.costs.items()}
        rows = [(kind, *(f"{value:.3g}" for value in values)) for kind, values in costs.items()]
        show_table(title, ("", *(f"n = {length}" for length in result.costs[ATTENTION])), rows)
    rows = [(kind, *(f"{share:.1%}" for share in by_length.values())) for kind, by_length in result.recall.items()]
    title = f"Stacks of {RECALL_LAYERS} layers: correct predictions of the first token ({1 / SYMBOLS:.1%} by chance)"
    show_table(title, ("", *(f"n = {length}" for length in RECALL_LENGTHS)), rows)
    save_plot(draw(result), folder / "complexity.png")


def draw(result: ComplexityResult) -> Figure:
    """One below the other, for narrow screens; bars, since the curves of two kinds are equal."""
    figure = Figure(figsize=(6, 7), layout="constrained")
    upper, lower = figure.subplots(2, 1)
    for index, (kind, gradients) in enumerate(result.gradient.items()):
        distances = range(len(gradients) - 1, -1, -1)
        shown = [value or math.nan for value in gradients]  # no gradient: outside of a logarithmic axis
        upper.plot(distances, shown, label=kind, color=COLORS[kind], linewidth=2)
        shares = [100 * share for share in result.recall[kind].values()]
        places = [place + 0.2 * index - 0.3 for place in range(len(shares))]
        lower.bar(places, shares, width=0.18, color=COLORS[kind])
    upper.set_yscale("log")
    upper.set_yticks([10.0**exponent for exponent in range(0, -17, -4)])
    upper.set(xlabel="distance of the token", ylabel="norm of the gradient")
    lower.set(xlabel="length of the sequence, tokens", ylabel="correct predictions, %", ylim=(0, 105))
    lower.set_xticks(range(len(RECALL_LENGTHS)), map(str, RECALL_LENGTHS))
    lower.axhline(100 / SYMBOLS, color=GRAY, linestyle=":", label="chance")
    format_axes(upper, "Gradient of the last state with respect to a token")
    format_axes(lower, "Recall of the first token after training")
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure
