"""Exercise 4: the feed-forward network (paper 3.3)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration
from modeling_random_transformer.extras.inspection import Trace, trace

from ..report import console, show_table
from .tasks import tiny_model

TOKENS, CHANGED = 6, 2  # length of the sequence, and the position whose state is replaced


@dataclass
class FeedForwardStatistics:
    """The feed-forward networks of one model.

    Attributes:
        widths: of the input, the inner layer and the output.
        parameters: number of parameters of all feed-forward networks.
        share: their fraction of all parameters of the model.
        zeros: the fraction of inner activations that ReLU sets to zero.
    """

    widths: tuple[int, int, int]
    parameters: int
    share: float
    zeros: float


@dataclass
class FeedForwardResult:
    """Statistics by preset, and the largest change of each position's output, by sub-layer, after one input changes."""

    statistics: dict[str, FeedForwardStatistics]
    changes: dict[str, list[float]]


def experiment(seed: int, presets: tuple[str, ...] = ("blog", "base")) -> FeedForwardResult:
    return FeedForwardResult({preset: measure(preset, seed) for preset in presets}, changes_from_one_token(seed))


def measure(preset: str, seed: int) -> FeedForwardStatistics:
    torch.manual_seed(seed)
    model = RandomTransformerForConditionalGeneration(RandomTransformerConfig.from_preset(preset)).eval()
    recorded = traced(model)
    first = "encoder.layers.0"
    widths = [recorded[f"{first}.{path}"].shape[-1] for path in ("self_attn.layer_norm", "ffn.inner", "ffn.output")]
    parameters = sum(p.numel() for name, p in model.named_parameters() if ".fc" in name)
    zeros = torch.cat([(value == 0).flatten() for value in recorded.select("*.ffn.activation").values()])
    return FeedForwardStatistics(
        (widths[0], widths[1], widths[2]), parameters, parameters / model.num_parameters(), zeros.float().mean().item()
    )


@torch.no_grad()
def traced(model: RandomTransformerForConditionalGeneration) -> Trace:
    ids = torch.randint(model.config.vocab_size, (1, TOKENS))
    with trace(model, heads=[]) as recorded:
        model(input_ids=ids, decoder_input_ids=ids)
    return recorded


@torch.no_grad()
def changes_from_one_token(seed: int) -> dict[str, list[float]]:
    block: Any = tiny_model(100, seed).model.encoder.layers[0]
    states = torch.randn(1, TOKENS, block.config.d_model)
    changed_states = states.clone()
    changed_states[:, CHANGED] = torch.randn(block.config.d_model)

    def largest(difference: Tensor) -> list[float]:
        return difference[0].abs().amax(dim=-1).tolist()

    return {
        "feed-forward": largest(block.feed_forward(changed_states) - block.feed_forward(states)),
        "self-attention": largest(block.self_attn(changed_states)[0] - block.self_attn(states)[0]),
    }


def show(result: FeedForwardResult, _folder: Path) -> None:
    columns = ("preset", "widths", "parameters", "share of the model", "zeros after ReLU")
    rows = [
        (
            preset,
            " → ".join(map(str, statistics.widths)),
            f"{statistics.parameters:,}",
            f"{statistics.share:.1%}",
            f"{statistics.zeros:.1%}",
        )
        for preset, statistics in result.statistics.items()
    ]
    show_table("max(0, x · W₁ + b₁) · W₂ + b₂", columns, rows)
    changes = [(name, *(f"{value:.2g}" for value in values)) for name, values in result.changes.items()]
    tokens = [f"token {index + 1}" for index in range(TOKENS)]
    show_table(f"Largest change of each output when only token {CHANGED + 1} changes", ("sub-layer", *tokens), changes)
    console.print("The feed-forward network processes positions independently; only attention combines them.")
