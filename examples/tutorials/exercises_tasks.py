"""A task that tiny models learn in seconds, and the loop that teaches them. Shared by the exercises."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import OneCycleLR

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration

Batch = tuple[Tensor, Tensor]  # source ids and labels
END_TOKEN, FIRST_SYMBOL = 2, 4  # ids below the first symbol are the special tokens


@dataclass(frozen=True)
class Reversal:
    """Distinct symbols, to be written in reverse order. No symbol tells anything of the others, so only order helps."""

    symbols: int  # to draw from
    length: int

    @property
    def vocab_size(self) -> int:
        return FIRST_SYMBOL + self.symbols

    def draw(self, count: int) -> Batch:
        """Random sources and their reversals, each followed by the end token: both `[count, length + 1]`."""
        sources = FIRST_SYMBOL + torch.rand(count, self.symbols).argsort(dim=1)[:, : self.length]
        end = torch.full((count, 1), END_TOKEN)
        return torch.cat([sources, end], dim=1), torch.cat([sources.flip(1), end], dim=1)


def tiny_model(vocab_size: int, seed: int, **overrides: Any) -> RandomTransformerForConditionalGeneration:
    """One block a stack, four heads and 64 dimensions, unless overridden; its weights are as random as the seed."""
    sizes: dict[str, Any] = {"d_model": 64, "d_ff": 128, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1}
    config = RandomTransformerConfig(**{"vocab_size": vocab_size, "dropout": 0.0, **sizes, **overrides})
    torch.manual_seed(seed)
    return RandomTransformerForConditionalGeneration(config).eval()


def train(
    model: RandomTransformerForConditionalGeneration,
    draw: Callable[[], Batch],
    steps: int,
    learning_rate: float = 3e-3,
) -> float:
    """Teach the model with a new batch at each step; the learning rate rises for a fifth of the steps, then falls.

    Returns the mean loss of the last tenth of the steps, in nats per token.
    """
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    schedule = OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=0.2)
    losses = []
    model.train()
    for _ in range(steps):
        source, labels = draw()
        loss = model(input_ids=source, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    return mean(losses[-max(1, steps // 10) :])


@torch.no_grad()
def exact_match(model: RandomTransformerForConditionalGeneration, task: Reversal, count: int = 500) -> float:
    """The share of `count` new sources that the model reverses without a mistake.

    Greedy search writes just the labels if the most probable token is the label at every position, given the labels
    before it: one pass tells.
    """
    sources, labels = task.draw(count)
    most_probable = model(input_ids=sources, labels=labels).logits.argmax(dim=-1)
    return (most_probable == labels).all(dim=1).float().mean().item()
