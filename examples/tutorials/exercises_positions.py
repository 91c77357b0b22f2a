"""Exercise 1: what position encodings are for (paper 3.5)."""

import math
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from .exercises_tasks import Reversal, exact_match, tiny_model, train
from .report import console, show_table

POSITIONS = ("none", "sinusoidal")
SENTENCE_LENGTH = 8
TASK = Reversal(symbols=10, length=6)


@dataclass
class PositionResult:
    """By kind of positions. `guessing` is the least loss that a model can have which knows the symbols, not the order.

    Attributes:
        moved: the largest difference between the encoder's states of a permuted sentence and its permuted states.
        loss: on the task of reversing, in nats per token.
        exact_match: the share of new sequences that were reversed without a mistake.
    """

    guessing: float
    moved: dict[str, float] = field(default_factory=dict)
    loss: dict[str, float] = field(default_factory=dict)
    exact_match: dict[str, float] = field(default_factory=dict)


def compare_positions(seed: int, steps: int = 200) -> PositionResult:
    # All orders of the symbols are as likely as each other, and the end token is sure.
    result = PositionResult(guessing=math.log(math.factorial(TASK.length)) / (TASK.length + 1))
    for positions in POSITIONS:
        result.moved[positions] = moved_by_permutation(positions, seed)
        model = tiny_model(TASK.vocab_size, seed, position_embedding=positions)
        result.loss[positions] = train(model, lambda: TASK.draw(64), steps)
        result.exact_match[positions] = exact_match(model, TASK)
    return result


@torch.no_grad()
def moved_by_permutation(positions: str, seed: int) -> float:
    """How far encode(permuted sentence) is from permuted(encode(sentence)), in a random model of two blocks."""
    model = tiny_model(100, seed, position_embedding=positions, encoder_layers=2)
    sentence = torch.randint(4, 100, (1, SENTENCE_LENGTH))
    order = torch.arange(SENTENCE_LENGTH).flip(0)

    def encode(ids: Tensor) -> Tensor:
        return model.model.encoder(ids).last_hidden_state

    return (encode(sentence[:, order]) - encode(sentence)[:, order]).abs().max().item()


def show_positions(result: PositionResult, _folder: Path) -> None:
    rows = [
        (
            positions,
            f"{result.moved[positions]:.2g}",
            f"{result.loss[positions]:.3f}",
            f"{result.exact_match[positions]:.1%}",
        )
        for positions in POSITIONS
    ]
    columns = ("positions", "states moved by", "loss, nats per token", "reversed exactly")
    show_table("A sentence in another order, and two models that learn to reverse six symbols", columns, rows)
    console.print(f"A model that knows which symbols come, but not in which order: {result.guessing:.3f} nats at best.")
