"""Exercise 2: self-attention against encoder-decoder attention (paper 3.2.3)."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from modeling_random_transformer import RandomTransformerForConditionalGeneration
from modeling_random_transformer.tracing import Step, Trace, trace

from .exercises_tasks import tiny_model
from .report import show_table

SOURCE_LENGTH, TARGET_LENGTH, VOCAB_SIZE = 7, 4, 100
KINDS = {
    "encoder self-attention": "encoder.layers.0.self_attn",
    "decoder self-attention": "decoder.layers.0.self_attn",
    "encoder-decoder attention": "decoder.layers.0.encoder_attn",
}
WATCHED = {
    "encoder self-attention, keys": "encoder.layers.0.self_attn.head.0.key",
    "decoder self-attention, keys": "decoder.layers.0.self_attn.head.0.key",
    "encoder-decoder attention, queries": "decoder.layers.0.encoder_attn.head.0.query",
    "encoder-decoder attention, keys": "decoder.layers.0.encoder_attn.head.0.key",
    "decoder self-attention of block 2, keys": "decoder.layers.1.self_attn.head.0.key",
}


@dataclass
class AttentionResult:
    """What the three kinds of attention work on.

    Attributes:
        steps: by kind, the query, key, value and weights of its first head: shape and formula.
        hidden: by kind, how many pairs of query and key the mask hides.
        by_source: by watched value, the largest change when other tokens are the source.
        by_target: the same for the target.
    """

    steps: dict[str, dict[str, Step]]
    hidden: dict[str, int]
    by_source: dict[str, float]
    by_target: dict[str, float]


def compare_attentions(seed: int) -> AttentionResult:
    model = tiny_model(VOCAB_SIZE, seed, encoder_layers=2, decoder_layers=2)
    source, other_source = torch.randint(4, VOCAB_SIZE, (2, 1, SOURCE_LENGTH))
    target, other_target = torch.randint(4, VOCAB_SIZE, (2, 1, TARGET_LENGTH))
    found = traced(model, source, target)
    return AttentionResult(
        steps={
            kind: {name: found.explain(f"{path}.head.0.{name}") for name in ("query", "key", "value", "weights")}
            for kind, path in KINDS.items()
        },
        hidden={kind: int((found[f"{path}.head.0.mask"] < 0).sum()) for kind, path in KINDS.items()},
        by_source=changes(found, traced(model, other_source, target)),
        by_target=changes(found, traced(model, source, other_target)),
    )


@torch.no_grad()
def traced(model: RandomTransformerForConditionalGeneration, source: Tensor, target: Tensor) -> Trace:
    with trace(model) as found:
        model(input_ids=source, decoder_input_ids=target)
    return found


def changes(before: Trace, after: Trace) -> dict[str, float]:
    """The largest difference in each watched value."""
    return {name: (after[path] - before[path]).abs().max().item() for name, path in WATCHED.items()}


def show_attentions(result: AttentionResult, _folder: Path) -> None:
    rows = [
        (kind, *(str(list(steps[name].shape)) for name in ("query", "key", "weights")), steps["key"].formula)
        for kind, steps in result.steps.items()
    ]
    columns = ("attention", "query", "key, value", "weights", "where keys come from")
    show_table(f"One head, with {SOURCE_LENGTH} source tokens and {TARGET_LENGTH} target tokens", columns, rows)
    hidden = [(kind, str(count)) for kind, count in result.hidden.items()]
    show_table("Hidden by the mask", ("attention", "pairs of query and key"), hidden)
    moved = [(name, f"{result.by_source[name]:.2g}", f"{result.by_target[name]:.2g}") for name in WATCHED]
    show_table("What changes with other tokens", ("value", "other source", "other target"), moved)
