"""Exercise 12: the feed-forward network as key-value memory (Geva et al. 2021; paper 3.3).

Unit i of the inner layer has a key, row i of W₁, and a value, column i of W₂: the output of the network is the sum of
the values, weighted by the activations max(0, key · x + b), plus a bias.
"""

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from modeling_random_transformer import RandomTransformerForConditionalGeneration
from modeling_random_transformer.extras.inspection import intervene

from ..report import BLUE, GRAY, ORANGE, console, format_axes, save_plot, show_table
from .trained import Translator, load_trained

SENTENCES = 1000
TRIGGERS = 30  # inputs with the largest activations of a unit
EXAMPLES = 6  # printed units per layer
SWITCHED_OFF = 12  # units
OTHERS = 20  # active units at the same inputs, of which one is switched off for comparison


@dataclass
class Unit:
    """A unit of a decoder layer.

    Attributes:
        index: in the layer.
        triggers: how often each next token occurs among the inputs with the largest activations.
        promoted: the tokens with the largest logits of the unit's value, the largest first.
    """

    index: int
    triggers: Counter[str]
    promoted: list[str]


@dataclass
class Layer:
    """Of the units of a decoder layer.

    Attributes:
        active: the fraction of inputs for which a unit is above zero.
        same_current: the fraction of a unit's triggers that have its most frequent current token.
        same_next: the same for the next token, which the model has to predict.
        agreement: the fraction of triggers whose next token is the one that the unit's value promotes most.
        units: the one with the largest agreement for each promoted token, the largest first; none if untrained.
    """

    active: float
    same_current: float
    same_next: float
    agreement: float
    units: list[Unit] = field(default_factory=list)


@dataclass
class MemoryResult:
    """Measurements of feed-forward networks.

    Attributes:
        difference: the largest difference between a network's output and the sum of the values.
        trained: the decoder's layers.
        untrained: those of the same model with random weights.
        switched_off: the decrease of the logit of a unit's promoted token, relative to the mean of all logits, without
            this unit and without another one that is active there.
    """

    difference: float
    trained: list[Layer]
    untrained: list[Layer]
    switched_off: list[tuple[float, float]]


@dataclass
class Recording:
    """The decoder's inputs of all sentences, without padding.

    Attributes:
        sentence, position: of each input, `[inputs]`.
        current, following: the token at each input and the correct next token, `[inputs]`.
        activations: by layer, `[inputs, d_ff]`.
    """

    sentence: Tensor
    position: Tensor
    current: Tensor
    following: Tensor
    activations: list[Tensor]


def experiment(seed: int, folder: Path, sentences: int = SENTENCES) -> MemoryResult:
    translator = load_trained(folder)
    torch.manual_seed(seed)
    untrained = RandomTransformerForConditionalGeneration(translator.model.config).eval()
    random_translator = Translator(untrained, translator.tokenizer, translator.train, translator.test)
    recording = record(translator, sentences)
    trained = examine(translator, recording)
    return MemoryResult(
        difference=sum_difference(translator),
        trained=trained,
        untrained=[
            Layer(**{**vars(layer), "units": []})
            for layer in examine(random_translator, record(random_translator, sentences))
        ],
        switched_off=[switch_off(translator, recording, unit, seed) for unit in trained[-1].units[:SWITCHED_OFF]],
    )


def record(translator: Translator, sentences: int) -> Recording:
    columns: dict[str, list[Tensor]] = {name: [] for name in ("sentence", "position", "current", "following")}
    layers = range(translator.model.config.decoder_layers)
    activations: list[list[Tensor]] = [[] for _ in layers]
    done = 0
    for inputs, trace in translator.traces(translator.train[-sentences:], heads=[]):
        row, position = (inputs["labels"] != -100).nonzero(as_tuple=True)
        columns["sentence"].append(row + done)
        columns["position"].append(position)
        columns["current"].append(trace["decoder.embedding.ids"][row, position])
        columns["following"].append(inputs["labels"][row, position])
        for layer in layers:
            activations[layer].append(trace[f"decoder.layers.{layer}.ffn.activation"][row, position])
        done += len(inputs["labels"])
    return Recording(
        **{name: torch.cat(parts) for name, parts in columns.items()}, activations=[*map(torch.cat, activations)]
    )


def promoted_logits(model: Any, layer: int) -> Tensor:
    """The logits of each unit's value: `[vocab_size, d_ff]`."""
    return (model.lm_head.weight @ model.model.decoder.layers[layer].fc2.weight).detach()


def examine(translator: Translator, recording: Recording) -> list[Layer]:
    return [examine_layer(translator, recording, layer) for layer in range(len(recording.activations))]


def examine_layer(translator: Translator, recording: Recording, layer: int) -> Layer:
    activations = recording.activations[layer]
    triggers = activations.topk(TRIGGERS, dim=0).indices  # [TRIGGERS, d_ff]
    current, following = recording.current[triggers], recording.following[triggers]
    logits = promoted_logits(translator.model, layer)
    agreement = (following == logits.argmax(dim=0)).float().mean(dim=0)  # [d_ff]
    order = agreement.argsort(descending=True, stable=True).tolist()
    best = {promoted: unit for unit, promoted in ((unit, int(logits[:, unit].argmax())) for unit in reversed(order))}
    units = [
        Unit(
            unit,
            Counter(translator.tokens(following[:, unit].tolist())),
            translator.tokens(logits[:, unit].topk(3).indices.tolist()),
        )
        for unit in sorted(best.values(), key=order.index)[: max(EXAMPLES, SWITCHED_OFF)]
    ]
    return Layer(
        active=(activations > 0).float().mean().item(),
        same_current=most_frequent_share(current),
        same_next=most_frequent_share(following),
        agreement=agreement.mean().item(),
        units=units,
    )


def most_frequent_share(tokens: Tensor) -> float:
    """The mean over columns of the share of the most frequent token."""
    return (tokens == tokens.mode(dim=0).values).float().mean().item()


@torch.no_grad()
def sum_difference(translator: Translator) -> float:
    """Between the output of the last decoder layer's network and Σ activation · value + bias, computed by unit."""
    _, trace = next(translator.traces(translator.test[:10], heads=[]))
    last = translator.model.config.decoder_layers - 1
    network = translator.model.model.decoder.layers[last].fc2
    total = network.bias.expand_as(trace[f"decoder.layers.{last}.ffn.output"])
    activations = trace[f"decoder.layers.{last}.ffn.activation"]
    for unit in range(activations.shape[-1]):
        total = total + activations[..., unit, None] * network.weight[:, unit]
    return (total - trace[f"decoder.layers.{last}.ffn.output"]).abs().max().item()


@torch.no_grad()
def switch_off(translator: Translator, recording: Recording, unit: Unit, seed: int) -> tuple[float, float]:
    """Set the activation of a unit to zero in the last layer, and that of another one.

    Returns:
        The mean decreases of the logit of the unit's promoted token, at the inputs that excite it most.
    """
    last = len(recording.activations) - 1
    activations = recording.activations[last]
    triggers = activations[:, unit.index].topk(TRIGGERS).indices
    token = promoted_logits(translator.model, last)[:, unit.index].argmax()
    active = (activations[triggers] > 0).sum(dim=0).topk(OTHERS + 1).indices.tolist()  # most often
    control_index = random.Random(seed).choice([index for index in active if index != unit.index])
    sentences = translator.train[-int(recording.sentence.max()) - 1 :]
    inputs = translator.encode([sentences[index] for index in recording.sentence[triggers].tolist()])
    rows, positions = torch.arange(TRIGGERS), recording.position[triggers]

    def promoted_logit(removed: int | None) -> Tensor:
        def remove(values: Tensor) -> Tensor:
            return values if removed is None else values.index_fill(-1, torch.tensor(removed), 0)

        with intervene(translator.model, {f"decoder.layers.{last}.ffn.activation": remove}):
            logits = translator.model(**inputs).logits
        return (logits - logits.mean(dim=-1, keepdim=True))[rows, positions, token]

    complete = promoted_logit(None)
    unit_decrease, control_decrease = (
        (complete - promoted_logit(index)).mean().item() for index in (unit.index, control_index)
    )
    return unit_decrease, control_decrease


# Output


def show(result: MemoryResult, folder: Path) -> None:
    console.print(f"Largest difference between a network's output and Σ activation · value: {result.difference:.1g}\n")
    rows = [
        (
            f"{name}, layer {index}",
            *(f"{value:.1%}" for value in (layer.active, layer.same_current, layer.same_next, layer.agreement)),
        )
        for name, layers in (("trained", result.trained), ("untrained", result.untrained))
        for index, layer in enumerate(layers)
    ]
    columns = ("decoder", "active", "same token", "same next token", "promoted = next token")
    show_table(f"The {TRIGGERS} inputs that excite a unit most", columns, rows)
    for index, layer in enumerate(result.trained):
        rows = [
            (
                str(unit.index),
                ", ".join(f"{token} {count}" for token, count in unit.triggers.most_common(3)),
                ", ".join(unit.promoted),
            )
            for unit in layer.units[:EXAMPLES]
        ]
        show_table(f"Units of layer {index}", ("unit", "next tokens of these inputs", "promoted tokens"), rows)
    unit_decrease, control_decrease = (
        sum(column) / len(result.switched_off) for column in zip(*result.switched_off, strict=True)
    )
    console.print(
        f"Without its unit, the logit of the promoted token decreases by {unit_decrease:.2f}; without another active "
        f"unit, by {control_decrease:.2f} (means of {len(result.switched_off)} units)."
    )
    save_plot(draw(result), folder / "key_value_memory.png")


def draw(result: MemoryResult) -> Figure:
    figure = Figure(figsize=(8, 3.4), layout="constrained")
    axes = figure.subplots()
    series = {
        "same token": ("same_current", BLUE),
        "same next token": ("same_next", ORANGE),
        "next token = promoted token": ("agreement", GRAY),
    }
    layers = {f"trained,\nlayer {index}": layer for index, layer in enumerate(result.trained)}
    layers |= {f"untrained,\nlayer {index}": layer for index, layer in enumerate(result.untrained)}
    for offset, (label, (name, color)) in enumerate(series.items()):
        heights = [100 * getattr(layer, name) for layer in layers.values()]
        bars = axes.bar(
            [index + 0.27 * (offset - 1) for index in range(len(layers))], heights, 0.25, color=color, label=label
        )
        axes.bar_label(bars, fmt="%.0f", fontsize=8)
    axes.set_xticks(range(len(layers)), list(layers))
    axes.set_ylabel("%")
    format_axes(axes, f"The {TRIGGERS} inputs that excite a unit most", grid=False)
    figure.legend(loc="outside right center", frameon=False)
    return figure
