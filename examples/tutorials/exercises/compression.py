"""Exercise 17: weight sharing across layers, head pruning and 8-bit weights: size against quality."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from transformers import AutoModelForSeq2SeqLM, set_seed

from modeling_random_transformer import (
    DynamicInt8Config,
    RandomTransformerForConditionalGeneration,
    RandomTransformerTokenizer,
)

from ..pruning import Head, head_importance, measure
from ..report import BLUE, GRAY, GREEN, ORANGE, console, show_table
from ..sample_data import held_out_sample
from ..training_helpers import MAX_TOKENS, VOCAB_SIZE, Pairs, build_translator
from .subwords import train_briefly

PAIRS, RANKING_PAIRS = 4300, 150  # pairs of the data, and of the part that ranks the heads
LAYERS = 3  # per stack
STEPS, LEARNING_RATE = 400, 2e-3
PRUNED = (0.25, 0.5, 0.75)  # fractions of the heads
SHARED, INT8, SMALL = "shared layers", "8-bit weights", "one layer"
COLORS = {"complete": GRAY, SMALL: GRAY, SHARED: BLUE, INT8: ORANGE, "pruned heads": GREEN}


@dataclass
class Compressed:
    """A compressed model.

    Attributes:
        method: the method of compression, a key of `COLORS`.
        name: the method and its degree.
        megabytes: size of the weights.
        bleu: of greedy translations of held-out sentences, 0 to 100.
        exact_match: percentage of translations that equal the reference.
    """

    method: str
    name: str
    megabytes: float
    bleu: float
    exact_match: float


def compare_compressions(seed: int, steps: int = STEPS, pruned: Sequence[float] = PRUNED) -> list[Compressed]:
    """Train models of three layers, of three layers with the same weights, and of one layer; prune and quantize."""
    train_pairs, test = held_out_sample(PAIRS)
    tokenizer = RandomTransformerTokenizer.train(chain(*train_pairs), VOCAB_SIZE, model_max_length=MAX_TOKENS)
    result = []

    def add(method: str, name: str, model: Any, size: float, heads: Sequence[Head] = ()) -> None:
        point = measure(model, tokenizer, heads, test)
        result.append(Compressed(method, name, size, point.bleu, point.exact_match))

    for method, layers in {"complete": LAYERS, SHARED: LAYERS, SMALL: 1}.items():
        set_seed(seed)
        model = build_translator(tokenizer, encoder_layers=layers, decoder_layers=layers, dropout=0.0)
        if method == SHARED:
            share_layers(model)
        train_briefly(model, tokenizer, train_pairs, seed, steps, LEARNING_RATE)
        add(method, method, model, weight_size(model))
        if method == "complete":
            quantized, size = quantize(model)
            add(INT8, INT8, quantized, size)
            order = rank_heads(model, tokenizer, train_pairs[:RANKING_PAIRS])
            for fraction in pruned:
                heads = order[: round(fraction * len(order))]
                size = weight_size(model) - len(heads) * head_size(model)
                add("pruned heads", f"{fraction:.0%} of heads pruned", model, size, heads)
    return result


def share_layers(model: RandomTransformerForConditionalGeneration) -> None:
    """Use the weights of the first layer of each stack in all of its layers (ALBERT, Lan et al. 2020, section 3.1).

    The layers remain different modules, because each has its own keys and values in the KV cache.
    """
    for stack in model.model.stacks:
        first, *others = stack.layers
        for layer in others:
            for name, weight in first.named_parameters():
                module, _, attribute = name.rpartition(".")
                setattr(layer.get_submodule(module), attribute, weight)


def weight_size(model: RandomTransformerForConditionalGeneration) -> float:
    """In MB; shared weights count once."""
    return sum(weight.nbytes for weight in model.parameters()) / 1e6


def head_size(model: RandomTransformerForConditionalGeneration) -> float:
    """The size in MB of the weights that a head has in the four projections of an attention."""
    attention, heads = model.model.encoder.layers[0].self_attn, model.config.num_heads
    projections = (attention.q_proj, attention.k_proj, attention.v_proj)
    biases = sum(projection.bias.nbytes for projection in projections)
    return (biases + sum(layer.weight.nbytes for layer in (*projections, attention.out_proj))) / heads / 1e6


def quantize(model: RandomTransformerForConditionalGeneration) -> tuple[Any, float]:
    """The model with int8 linear layers, and the size of its saved weights in MB."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        quantized = AutoModelForSeq2SeqLM.from_pretrained(folder, quantization_config=DynamicInt8Config())
        quantized.save_pretrained(folder)
        return quantized, (Path(folder) / "model.safetensors").stat().st_size / 1e6


def rank_heads(model: Any, tokenizer: Any, pairs: Pairs) -> list[Head]:
    """The heads of all attentions, those that the loss depends on least first."""
    importance = head_importance(model, tokenizer, pairs)
    return sorted(importance, key=importance.__getitem__)


# Output


def show_compressions(result: Sequence[Compressed], folder: Path) -> None:
    rows = [(of.name, f"{of.megabytes:.2f}", f"{of.bleu:.1f}", f"{of.exact_match:.1f}%") for of in result]
    title = f"Models of {LAYERS} + {LAYERS} layers on held-out sentences"
    show_table(title, ("model", "MB", "BLEU", "exact match"), rows)
    draw_compressions(result, folder / "compression.png")
    console.print(f"Plot: {folder / 'compression.png'}", soft_wrap=True)


def draw_compressions(result: Sequence[Compressed], path: Path) -> None:
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for of in result:
        axes.scatter(of.megabytes, of.bleu, s=45, color=COLORS[of.method])
        axes.annotate(of.name, (of.megabytes, of.bleu), xytext=(0, 7), textcoords="offset points", ha="center")
    axes.set(xlabel="size of the weights, MB", ylabel="BLEU", xlim=(0, None), ylim=(0, 108))
    axes.margins(x=0.15)
    axes.grid(color="#e6e6e6")
    axes.set_title("Size against quality", loc="left", fontweight="bold")
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=90)
