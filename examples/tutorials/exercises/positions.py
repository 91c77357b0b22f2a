"""Exercise 1: the purpose of positional encoding (paper 3.5)."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from ..report import console, show_table
from .tasks import Reversal, exact_match, tiny_model, train

POSITIONS = ("none", "sinusoidal")
SENTENCE_LENGTH = 8
TASK = Reversal(symbols=10, length=6)


@dataclass
class PositionResult:
    """Measurements by type of position embedding.

    Attributes:
        order_unknown_loss: the minimum loss of a model that knows the symbols but not their order.
        difference: the largest difference between the states of a reversed sentence and the reversed states.
        loss: on the reversal task, in nats per token.
        exact_match: the fraction of new sequences reversed correctly.
    """

    order_unknown_loss: float
    difference: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)
    exact_match: dict[str, float] = field(default_factory=dict)


def experiment(seed: int, steps: int = 200) -> PositionResult:
    # All orders are equally probable; the end token is certain.
    result = PositionResult(order_unknown_loss=math.log(math.factorial(TASK.length)) / (TASK.length + 1))
    for positions in POSITIONS:
        result.difference[positions] = permutation_difference(positions, seed)
        model = tiny_model(TASK.vocab_size, seed, position_embedding=positions)
        result.loss[positions] = train(model, lambda: TASK.sample(64), steps)
        result.exact_match[positions] = exact_match(model, TASK)
    return result


@torch.no_grad()
def permutation_difference(positions: str, seed: int) -> float:
    """max |encode(reversed sentence) - reversed(encode(sentence))| in a random encoder of two layers."""
    model = tiny_model(100, seed, position_embedding=positions, encoder_layers=2)
    sentence = torch.randint(4, 100, (1, SENTENCE_LENGTH))
    order = torch.arange(SENTENCE_LENGTH).flip(0)

    def encode(ids: Tensor) -> Tensor:
        return model.model.encoder(ids).last_hidden_state

    return (encode(sentence[:, order]) - encode(sentence)[:, order]).abs().max().item()


def show(result: PositionResult, _folder: Path) -> None:
    rows = [
        (
            positions,
            f"{result.difference[positions]:.2g}",
            f"{result.loss[positions]:.3f}",
            f"{result.exact_match[positions]:.1%}",
        )
        for positions in POSITIONS
    ]
    columns = ("positions", "difference of states", "loss, nats per token", "exact match")
    show_table("Reversing a sentence, and training to reverse six symbols", columns, rows)
    console.print(
        f"Minimum loss of a model that knows the symbols but not their order: {result.order_unknown_loss:.3f} nats"
    )
