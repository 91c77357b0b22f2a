"""Exercise 11: models without feed-forward networks, residual connections, positions or soft attention (paper 3)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer.extras.inspection import intervene

from ..report import BLUE, ORANGE, save_plot, show_table
from ..training_helpers import Pairs, translate
from .tasks import Reversal, exact_match, tiny_model, train
from .trained import Translator, load_trained

Replacements = dict[str, Any]
SENTENCES = 100
TASK = Reversal(symbols=8, length=5)
TRAINED_LAYERS = 2  # per stack, in the models trained without a part
SUB_LAYERS = {"encoder": ("self_attn", "ffn"), "decoder": ("self_attn", "encoder_attn", "ffn")}
COMPLETE, NO_FFN, NO_RESIDUALS = "complete", "no feed-forward networks", "no residual connections"
NO_POSITIONS, HARD, STRAIGHT_THROUGH = "no positions", "hard attention", "hard attention, straight-through gradient"


@dataclass
class AblationResult:
    """The fraction of correct sequences, by what is missing.

    Attributes:
        removed: translations of a trained model without a part.
        translations: of the first sentence.
        attention: translations without encoder-decoder attention; the figures of docs/how_to/intervene.md.
        trained: reversals of models that were trained without the part.
    """

    removed: dict[str, float] = field(default_factory=dict)
    source: str = ""
    translations: dict[str, str] = field(default_factory=dict)
    attention: dict[str, float] = field(default_factory=dict)
    trained: dict[str, float] = field(default_factory=dict)


# Replacements for `intervene`


def no_residuals(config: RandomTransformerConfig) -> Replacements:
    """The sum of each residual connection becomes the sub-layer's output."""
    replacements: Replacements = {}
    for stack, names in SUB_LAYERS.items():
        layers = range(getattr(config, f"{stack}_layers"))
        for path in (f"{stack}.layers.{layer}.{name}" for layer in layers for name in names):
            outputs: list[Tensor] = []
            replacements[f"{path}.output"] = save_to(outputs)
            replacements[f"{path}.residual"] = lambda _, saved=outputs: saved.pop()
    return replacements


def save_to(outputs: list[Tensor]) -> Callable[[Tensor], Tensor]:
    def save(output: Tensor) -> Tensor:
        outputs[:] = [output]
        return output

    return save


def hard(weights: Tensor) -> Tensor:
    """All weight on the key with the largest one. The gradient of this function is zero."""
    return torch.zeros_like(weights).scatter(-1, weights.argmax(dim=-1, keepdim=True), 1.0)


def hard_straight_through(weights: Tensor) -> Tensor:
    """The same value, with the gradient of the soft weights (Bengio et al. 2013)."""
    return hard(weights) + weights - weights.detach()


def parts(config: RandomTransformerConfig) -> dict[str, Replacements]:
    """The replacements that remove each part of a model."""
    return {
        COMPLETE: {},
        NO_FFN: {"*.ffn.output": 0},
        NO_RESIDUALS: no_residuals(config),
        NO_POSITIONS: {"*.embedding.position": 0},
        HARD: {"*.weights": hard},
    }


def parts_of_stacks() -> dict[str, Replacements]:
    """The same for one stack or one kind of attention."""
    return {
        "no feed-forward networks in the encoder": {"encoder.*.ffn.output": 0},
        "no feed-forward networks in the decoder": {"decoder.*.ffn.output": 0},
        "no positions of the source": {"encoder.embedding.position": 0},
        "no positions of the target": {"decoder.embedding.position": 0},
        "hard encoder-decoder attention": {"*.encoder_attn.*.weights": hard},
    }


def parts_of_attention(config: RandomTransformerConfig) -> dict[str, Replacements]:
    """The replacements that remove the encoder-decoder attention of each layer, and each head of the last one."""
    layers = {f"layer {i}": {f"decoder.layers.{i}.encoder_attn.output": 0} for i in range(config.decoder_layers)}
    last = f"decoder.layers.{config.decoder_layers - 1}.encoder_attn"
    heads = {f"head {i} of the last layer": {f"{last}.head.{i}.output": 0} for i in range(config.num_heads)}
    return {**layers, **heads}


# Experiments


def experiment(seed: int, folder: Path, sentences: int = SENTENCES, steps: int = 200) -> AblationResult:
    translator = load_trained(folder)
    pairs = translator.test[:sentences]
    result = AblationResult(source=pairs[0][0])
    for name, replacements in {**parts(translator.model.config), **parts_of_stacks()}.items():
        result.removed[name] = exact_match_with(translator, replacements, pairs)
        with intervene(translator.model, replacements):
            (result.translations[name],) = translate(
                translator.model, translator.tokenizer, [result.source], do_sample=False, max_new_tokens=20
            )
    for name, replacements in parts_of_attention(translator.model.config).items():
        result.attention[name] = exact_match_with(translator, replacements, pairs)
    for name in (COMPLETE, NO_FFN, NO_RESIDUALS, NO_POSITIONS, HARD, STRAIGHT_THROUGH):
        result.trained[name] = train_without(name, seed, steps)
    return result


def exact_match_with(translator: Translator, replacements: Replacements, pairs: Pairs) -> float:
    """The fraction of correct greedy translations with the replacements."""
    with intervene(translator.model, replacements):
        return translator.exact_match(pairs)


def train_without(name: str, seed: int, steps: int) -> float:
    """The exact match of a model that is trained and tested without a part."""
    model = tiny_model(TASK.vocab_size, seed, encoder_layers=TRAINED_LAYERS, decoder_layers=TRAINED_LAYERS)
    replacements = parts(model.config) | {STRAIGHT_THROUGH: {"*.weights": hard_straight_through}}
    with intervene(model, replacements[name]):
        train(model, lambda: TASK.sample(64), steps)
        return exact_match(model, TASK)


# Output


def show(result: AblationResult, folder: Path) -> None:
    rows = [(name, f"{share:.1%}", result.translations[name]) for name, share in result.removed.items()]
    show_table("A trained translator without a part", ("", "exact match", f"{result.source} →"), rows)
    attention = [(name, f"{share:.1%}") for name, share in result.attention.items()]
    show_table("Without the encoder-decoder attention of a layer or a head", ("", "exact match"), attention)
    trained = [(name, f"{share:.1%}") for name, share in result.trained.items()]
    title = f"{TRAINED_LAYERS} + {TRAINED_LAYERS} layers, trained without the part to reverse {TASK.length} symbols"
    show_table(title, ("", "exact match"), trained)
    save_plot(draw(result), folder / "ablations.png")


def draw(result: AblationResult) -> Figure:
    figure = Figure(figsize=(10, 3.6), layout="constrained")
    panels = {
        "Translator without the part": (result.removed, BLUE),
        "Trained without the part": (result.trained, ORANGE),
    }
    for axes, (title, (shares, color)) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        bars = axes.barh(list(shares), [100 * share for share in shares.values()], color=color)
        axes.bar_label(bars, fmt="%.0f%%", padding=3, fontsize=9)
        axes.invert_yaxis()
        axes.set_xlim(0, 115)
        axes.set_xticks([])
        axes.set_title(title, fontsize=11, fontweight="bold")
        axes.spines[["top", "right", "bottom"]].set_visible(False)
    return figure
