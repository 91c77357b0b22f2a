"""Exercise 4: the feed-forward network (paper 3.3)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration
from modeling_random_transformer.tracing import Trace, trace

from .exercises_tasks import tiny_model
from .report import console, show_table

TOKENS, CHANGED = 6, 2  # of the sentence; the one that is changed


@dataclass
class Shape:
    """The feed-forward networks of one model.

    Attributes:
        widths: into the network, within it and out of it.
        parameters: of all its feed-forward networks.
        share: of the model's parameters.
        zeros: the share of inner values that ReLU sets to zero.
    """

    widths: tuple[int, int, int]
    parameters: int
    share: float
    zeros: float


@dataclass
class FeedForwardResult:
    """Shapes by preset; and by sub-layer, how far each position's output moves when one position's input changes."""

    shapes: dict[str, Shape]
    moved: dict[str, list[float]]


def examine_feed_forward(seed: int, presets: tuple[str, ...] = ("blog", "base")) -> FeedForwardResult:
    return FeedForwardResult({preset: shape_of(preset, seed) for preset in presets}, moved_by_one_token(seed))


def shape_of(preset: str, seed: int) -> Shape:
    torch.manual_seed(seed)
    model = RandomTransformerForConditionalGeneration(RandomTransformerConfig.from_preset(preset)).eval()
    found = traced(model)
    first = "encoder.layers.0"
    widths = [found[f"{first}.{path}"].shape[-1] for path in ("self_attn.layer_norm", "ffn.inner", "ffn.output")]
    parameters = sum(p.numel() for name, p in model.named_parameters() if ".fc" in name)
    zeros = torch.cat([(value == 0).flatten() for value in found.select("*.ffn.activation").values()])
    return Shape(
        (widths[0], widths[1], widths[2]), parameters, parameters / model.num_parameters(), zeros.float().mean().item()
    )


@torch.no_grad()
def traced(model: RandomTransformerForConditionalGeneration) -> Trace:
    ids = torch.randint(model.config.vocab_size, (1, TOKENS))
    with trace(model, heads=[]) as found:
        model(input_ids=ids, decoder_input_ids=ids)
    return found


@torch.no_grad()
def moved_by_one_token(seed: int) -> dict[str, list[float]]:
    block: Any = tiny_model(100, seed).model.encoder.layers[0]
    states = torch.randn(1, TOKENS, block.config.d_model)
    others = states.clone()
    others[:, CHANGED] = torch.randn(block.config.d_model)

    def largest(difference: Tensor) -> list[float]:
        return difference[0].abs().amax(dim=-1).tolist()

    return {
        "feed-forward": largest(block.feed_forward(others) - block.feed_forward(states)),
        "self-attention": largest(block.self_attn(others)[0] - block.self_attn(states)[0]),
    }


def show_feed_forward(result: FeedForwardResult, _folder: Path) -> None:
    columns = ("preset", "widths", "parameters", "of the model", "zeros after ReLU")
    rows = [
        (
            preset,
            " → ".join(map(str, shape.widths)),
            f"{shape.parameters:,}",
            f"{shape.share:.1%}",
            f"{shape.zeros:.1%}",
        )
        for preset, shape in result.shapes.items()
    ]
    show_table("max(0, x · W₁ + b₁) · W₂ + b₂", columns, rows)
    moved = [(name, *(f"{value:.2g}" for value in values)) for name, values in result.moved.items()]
    tokens = [f"token {index + 1}" for index in range(TOKENS)]
    show_table(f"How far each output moves when only token {CHANGED + 1} changes", ("sub-layer", *tokens), moved)
    console.print("The feed-forward network acts on each position alone; attention carries between positions.")
