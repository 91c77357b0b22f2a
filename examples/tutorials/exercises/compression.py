"""Exercise 17: weight sharing across layers, head pruning and 8-bit weights: size against quality."""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import AutoModelForSeq2SeqLM, set_seed

from modeling_random_transformer import DynamicInt8Config, RandomTransformerForConditionalGeneration

from ..pruning import Head, head_importance, measure
from ..report import show_table
from ..training_helpers import train_briefly
from .trained import load_trained

RANKING_PAIRS, TEST_PAIRS = 150, 200  # pairs for the importance of the heads, and for the scores
STEPS, LEARNING_RATE = 200, 1e-3  # settings of the fine-tuning
PRUNED = (0.25, 0.5, 0.75)  # fractions of the heads
COMPLETE, INT8, HEADS, SHARED, SMALL = "complete", "8-bit weights", "pruned heads", "shared layers", "first layer only"


@dataclass
class Compressed:
    """A compressed model.

    Attributes:
        method: the method of compression.
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


def experiment(seed: int, folder: Path, steps: int = STEPS, pruned: Sequence[float] = PRUNED) -> list[Compressed]:
    """Compress the model of the quickstart in `folder`. Models with fewer weights are fine-tuned for some steps."""
    translator = load_trained(folder)
    model, tokenizer, train_pairs = translator.model, translator.tokenizer, translator.train
    result = []

    def add(method: str, name: str, model: Any, size: float, heads: Sequence[Head] = ()) -> None:
        point = measure(model, tokenizer, heads, translator.test[:TEST_PAIRS])
        result.append(Compressed(method, name, size, point.bleu, point.exact_match))

    complete = weight_size(model)
    add(COMPLETE, COMPLETE, model, complete)
    add(INT8, INT8, *quantize(model))
    importance = head_importance(model, tokenizer, train_pairs[:RANKING_PAIRS])
    order = sorted(importance, key=importance.__getitem__)
    for fraction in pruned:
        heads = order[: round(fraction * len(order))]
        add(HEADS, f"{fraction:.0%} of heads pruned", model, complete - len(heads) * head_size(model), heads)
    for method, compress in ((SHARED, share_layers), (SMALL, keep_first_layer)):
        set_seed(seed)
        model = load_trained(folder).model
        compress(model)
        train_briefly(model, tokenizer, train_pairs, seed, steps, LEARNING_RATE)
        add(method, method, model, weight_size(model))
    return result


def share_layers(model: RandomTransformerForConditionalGeneration) -> None:
    """Use the weights of the first layer of each stack in all of its layers (ALBERT, Lan et al. 2020, section 3.1).

    The layers remain different modules, because each has its own keys and values in the KV cache.
    """
    for stack in model.model.stacks:
        first, *later_layers = stack.layers
        for layer in later_layers:
            for name, weight in first.named_parameters():
                module, _, attribute = name.rpartition(".")
                setattr(layer.get_submodule(module), attribute, weight)


def keep_first_layer(model: RandomTransformerForConditionalGeneration) -> None:
    """Remove all layers of each stack but the first."""
    for stack in model.model.stacks:
        del stack.layers[1:]


def weight_size(model: RandomTransformerForConditionalGeneration) -> float:
    """In MB; shared weights count once."""
    return sum(weight.nbytes for weight in model.parameters()) / 1e6


def head_size(model: RandomTransformerForConditionalGeneration) -> float:
    """The size in MB of the weights that a head has in the four projections of an attention."""
    attention: Any = model.model.encoder.layers[0].self_attn
    heads = model.config.num_heads
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


# Output


def show(result: Sequence[Compressed], _folder: Path) -> None:
    rows = [(of.name, f"{of.megabytes:.2f}", f"{of.bleu:.1f}", f"{of.exact_match:.1f}%") for of in result]
    show_table("Held-out sentences", ("model", "MB", "BLEU", "exact match"), rows)
