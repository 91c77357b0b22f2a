"""Exercise 18: from a line to a network: loss, gradient descent, local optima, ReLU. Every step uses all points."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor, nn

from ..report import BLUE, GRAY, ORANGE, console, format_axes, save_plot, show_table

X = torch.linspace(-1, 1, 101, dtype=torch.float64)  # the inputs of all data
BENT = torch.where(X > 0, X, -X / 2)  # no straight line fits these targets
LEARNING_RATES = {0.01: ORANGE, 0.3: BLUE, 1.05: GRAY}  # too small, suitable, too large
STARTS = {(0.1, -0.8): BLUE, (0.8, 1.2): ORANGE}  # w₁ and w₂
NETWORK_STYLES: dict[str, dict[str, Any]] = {
    "line": {"color": GRAY},
    "two linear layers": {"color": ORANGE, "dashes": (3, 2)},
    "ReLU between them": {"color": BLUE},
}
DEPTH, WIDTH = 20, 256  # size of the stacks of layers with initial weights
INITIALIZATIONS: dict[str, Any] = {"Xavier": nn.init.xavier_normal_, "Kaiming": nn.init.kaiming_normal_}
ACTIVATIONS: dict[str, Any] = {"ReLU": torch.relu, "tanh": torch.tanh}


@dataclass
class DescentResult:
    """Measurements of a line, of two ReLU units and of networks.

    Attributes:
        gradient_difference: the largest relative difference of the gradient's formula from autograd, over all steps.
        line_minimum: the loss of the line found by least squares.
        line_losses: by learning rate, the loss before each step and after the last.
        paths: by start, the weights of two units before each step and after the last, `[steps + 1, 2]`.
        path_losses: by start, the loss at the end of the path.
        fits: by network, the final loss on the bent data and the predictions, `[101]`.
        sizes: by activation and initialization, the root mean square of the states after `DEPTH` layers.
    """

    gradient_difference: float = 0.0
    line_minimum: float = 0.0
    line_losses: dict[float, list[float]] = field(default_factory=dict)
    paths: dict[tuple[float, float], Tensor] = field(default_factory=dict)
    path_losses: dict[tuple[float, float], float] = field(default_factory=dict)
    fits: dict[str, tuple[float, Tensor]] = field(default_factory=dict)
    sizes: dict[tuple[str, str], float] = field(default_factory=dict)


def experiment(seed: int, line_steps: int = 60, unit_steps: int = 200, steps: int = 1500) -> DescentResult:
    torch.manual_seed(seed)
    result = DescentResult()
    targets = 2 * X + 1 + 0.2 * torch.randn_like(X)
    columns = torch.stack([X, torch.ones_like(X)], dim=1)
    w, b = torch.linalg.lstsq(columns, targets[:, None]).solution
    result.line_minimum = loss_of(w * X + b, targets).item()
    for rate in LEARNING_RATES:
        result.line_losses[rate], difference = fit_line(targets, rate, line_steps)
        result.gradient_difference = max(result.gradient_difference, difference)
    for start in STARTS:
        path = fit_units(start, unit_steps)
        result.paths[start], result.path_losses[start] = path, loss_of(two_units(path[-1]), BENT).item()
    for name in NETWORK_STYLES:
        result.fits[name] = fit_network(build_network(name), steps)
    for activation in ACTIVATIONS:
        for initialization in INITIALIZATIONS:
            result.sizes[activation, initialization] = size_after_layers(activation, initialization)
    return result


def loss_of(predictions: Tensor, targets: Tensor) -> Tensor:
    """The mean squared error over the last dimension."""
    return (predictions - targets).square().mean(dim=-1)


def line_gradient(w: Tensor, b: Tensor, targets: Tensor) -> Tensor:
    """dL/dw = mean(2·(w·x + b - y)·x) and dL/db = mean(2·(w·x + b - y)), by the chain rule: `[2]`."""
    error = w * X + b - targets
    return torch.stack([(2 * error * X).mean(), (2 * error).mean()])


def fit_line(targets: Tensor, rate: float, steps: int) -> tuple[list[float], float]:
    """Fit w·x + b from w = b = 0 by the gradient's formula.

    Returns the loss before each step and after the last, and the largest relative difference of the gradient from the
    one that autograd computes.
    """
    parameters = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    losses, difference = [], 0.0
    for _ in range(steps):
        w, b = parameters
        losses.append(loss_of(w * X + b, targets))
        (by_autograd,) = torch.autograd.grad(losses[-1], parameters)
        with torch.no_grad():
            by_hand = line_gradient(w, b, targets)
            difference = max(difference, ((by_hand - by_autograd).norm() / by_autograd.norm()).item())
            parameters -= rate * by_hand  # the step of gradient descent
    w, b = parameters
    losses.append(loss_of(w * X + b, targets))
    return [loss.item() for loss in losses], difference


def two_units(weights: Tensor) -> Tensor:
    """ReLU(w₁·x) + ReLU(w₂·x): weights `[…, 2]` → predictions `[…, 101]`."""
    return (weights[..., None] * X).relu().sum(dim=-2)


def fit_units(start: tuple[float, float], steps: int, rate: float = 0.3) -> Tensor:
    """Gradient descent on w₁ and w₂. Returns them before each step and after the last, `[steps + 1, 2]`."""
    path = [torch.tensor(start, dtype=torch.float64)]
    for _ in range(steps):
        weights = path[-1].clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss_of(two_units(weights), BENT), weights)
        path.append(path[-1] - rate * gradient)
    return torch.stack(path)


def build_network(name: str, units: int = 16) -> nn.Module:
    if name == "line":
        return nn.Linear(1, 1)
    activation = nn.ReLU() if name == "ReLU between them" else nn.Identity()
    return nn.Sequential(nn.Linear(1, units), activation, nn.Linear(units, 1))


def fit_network(network: nn.Module, steps: int, rate: float = 0.1) -> tuple[float, Tensor]:
    """Gradient descent on all parameters. Returns the final loss and the predictions, `[101]`."""
    parameters = list(network.double().parameters())
    for _ in range(steps):
        gradients = torch.autograd.grad(loss_of(network(X[:, None])[:, 0], BENT), parameters)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(rate * gradient)
    predictions = network(X[:, None])[:, 0].detach()
    return loss_of(predictions, BENT).item(), predictions


@torch.no_grad()
def size_after_layers(activation: str, initialization: str) -> float:
    """The root mean square of 100 random states, at first 1, after layers with initial weights."""
    states = torch.randn(100, WIDTH)
    for _ in range(DEPTH):
        weights = INITIALIZATIONS[initialization](torch.empty(WIDTH, WIDTH))
        states = ACTIVATIONS[activation](states @ weights.T)
    return states.square().mean().sqrt().item()


def show(result: DescentResult, folder: Path) -> None:
    console.print(f"Largest relative difference of the gradient from autograd: {result.gradient_difference:.2g}\n")
    rates = [(str(rate), f"{first:.4g}", f"{last:.4g}") for rate, (first, *_, last) in result.line_losses.items()]
    title = f"Loss of a line w·x + b; minimum: {result.line_minimum:.4g}"
    show_table(title, ("learning rate", "at the start", "after the last step"), rates)
    units = [
        (f"{start}", f"({path[-1, 0]:.3f}, {path[-1, 1]:.3f})", f"{result.path_losses[start]:.2g}")
        for start, path in result.paths.items()
    ]
    show_table("Two units, ReLU(w₁·x) + ReLU(w₂·x)", ("start (w₁, w₂)", "end", "loss"), units)
    fits = [(name, f"{loss:.2g}") for name, (loss, _) in result.fits.items()]
    show_table("Networks fitted to a bent line", ("network", "loss"), fits)
    sizes = [
        (activation, *(f"{result.sizes[activation, name]:.2g}" for name in INITIALIZATIONS))
        for activation in ACTIVATIONS
    ]
    show_table(f"Size of random states after {DEPTH} initial layers", ("activation", *INITIALIZATIONS), sizes)
    save_plot(draw(result), folder / "gradient_descent.png")


def draw(result: DescentResult) -> Figure:
    figure = Figure(figsize=(12, 3.9), layout="constrained")
    line, surface, fits = figure.subplots(1, 3)
    for rate, losses in result.line_losses.items():
        line.plot(losses, color=LEARNING_RATES[rate], linewidth=2, label=f"learning rate {rate}")
    line.axhline(result.line_minimum, color="black", linestyle=":", linewidth=1)
    line.set(yscale="log", xlabel="step")
    draw_surface(surface, result)
    fits.plot(X, BENT, color="black", linewidth=5, alpha=0.2, label="data")
    for name, (_, predictions) in result.fits.items():
        fits.plot(X, predictions, **NETWORK_STYLES[name], linewidth=2, label=name)
    fits.set(xlabel="x")
    titles = ("Loss of a line", "Two minima of two ReLU units", "Networks fitted to a bent line")
    for axes, title in zip((line, surface, fits), titles, strict=True):
        axes.legend(frameon=False, loc="upper left")
        format_axes(axes, title, grid=False)
    return figure


def draw_surface(axes: Axes, result: DescentResult) -> None:
    """Contours of the loss over w₁ and w₂, and the paths."""
    w = torch.linspace(-1.5, 1.5, 121, dtype=torch.float64)
    losses = loss_of(two_units(torch.stack(torch.meshgrid(w, w, indexing="xy"), dim=-1)), BENT)
    axes.contourf(w, w, losses.sqrt(), levels=24, cmap="Greys", vmax=1.5)  # the root shows the minima more clearly
    for start, path in result.paths.items():
        label = f"loss {result.path_losses[start]:.3f}"
        axes.plot(*path.T, color=STARTS[start], linewidth=2, marker="o", markersize=3, label=label)
        axes.plot(*path[-1], color=STARTS[start], marker="*", markersize=14)
    axes.set(xlabel="w₁", ylabel="w₂", aspect="equal")
