"""Exercise 2: self-attention and encoder-decoder attention (paper 3.2.3)."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from modeling_random_transformer import RandomTransformerForConditionalGeneration
from modeling_random_transformer.extras.inspection import Step, Trace, trace

from ..report import show_table
from .tasks import tiny_model

SOURCE_LENGTH, TARGET_LENGTH, VOCAB_SIZE = 7, 4, 100
KINDS = {
    "encoder self-attention": "encoder.layers.0.self_attn",
    "decoder self-attention": "decoder.layers.0.self_attn",
    "encoder-decoder attention": "decoder.layers.0.encoder_attn",
}
VALUES = {
    "encoder self-attention, keys": "encoder.layers.0.self_attn.head.0.key",
    "decoder self-attention, keys": "decoder.layers.0.self_attn.head.0.key",
    "encoder-decoder attention, queries": "decoder.layers.0.encoder_attn.head.0.query",
    "encoder-decoder attention, keys": "decoder.layers.0.encoder_attn.head.0.key",
    "decoder self-attention in the second layer, keys": "decoder.layers.1.self_attn.head.0.key",
}


@dataclass
class AttentionResult:
    """The inputs of the three types of attention.

    Attributes:
        steps: by type, the shapes and formulas of the first head's query, key, value and weights.
        masked: by type, the number of masked query-key pairs.
        by_source: by value, the largest change after the source tokens are replaced.
        by_target: the same for the target tokens.
    """

    steps: dict[str, dict[str, Step]]
    masked: dict[str, int]
    by_source: dict[str, float]
    by_target: dict[str, float]


def experiment(seed: int) -> AttentionResult:
    model = tiny_model(VOCAB_SIZE, seed, encoder_layers=2, decoder_layers=2)
    source, other_source = torch.randint(4, VOCAB_SIZE, (2, 1, SOURCE_LENGTH))
    target, other_target = torch.randint(4, VOCAB_SIZE, (2, 1, TARGET_LENGTH))
    recorded = traced(model, source, target)
    return AttentionResult(
        steps={
            kind: {name: recorded.explain(f"{path}.head.0.{name}") for name in ("query", "key", "value", "weights")}
            for kind, path in KINDS.items()
        },
        masked={kind: int((recorded[f"{path}.head.0.mask"] < 0).sum()) for kind, path in KINDS.items()},
        by_source=changes(recorded, traced(model, other_source, target)),
        by_target=changes(recorded, traced(model, source, other_target)),
    )


@torch.no_grad()
def traced(model: RandomTransformerForConditionalGeneration, source: Tensor, target: Tensor) -> Trace:
    with trace(model) as recorded:
        model(input_ids=source, decoder_input_ids=target)
    return recorded


def changes(before: Trace, after: Trace) -> dict[str, float]:
    """The largest difference of each value."""
    return {name: (after[path] - before[path]).abs().max().item() for name, path in VALUES.items()}


def show(result: AttentionResult, _folder: Path) -> None:
    rows = [
        (kind, *(str(list(steps[name].shape)) for name in ("query", "key", "weights")), steps["key"].formula)
        for kind, steps in result.steps.items()
    ]
    columns = ("attention", "query", "key, value", "weights", "formula of the keys")
    show_table(f"One head with {SOURCE_LENGTH} source tokens and {TARGET_LENGTH} target tokens", columns, rows)
    masked = [(kind, str(count)) for kind, count in result.masked.items()]
    show_table("Masked pairs", ("attention", "query-key pairs"), masked)
    changed = [(name, f"{result.by_source[name]:.2g}", f"{result.by_target[name]:.2g}") for name in VALUES]
    show_table("Largest change after replacing the tokens", ("value", "of the source", "of the target"), changed)
