"""A task that tiny models learn in seconds, and its training loop. Shared by the exercises."""

from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR

from modeling_random_transformer import RandomTransformerConfig, RandomTransformerForConditionalGeneration

Batch = tuple[Tensor, Tensor]  # inputs, such as source ids, and labels
END_TOKEN, FIRST_SYMBOL = 2, 4  # ids below the first symbol are the special tokens


@dataclass(frozen=True)
class Reversal:
    """Reverse a sequence of distinct random symbols. Only positions help: the symbols are independent of each other."""

    symbols: int  # number of different symbols
    length: int

    @property
    def vocab_size(self) -> int:
        return FIRST_SYMBOL + self.symbols

    def sample(self, count: int) -> Batch:
        """Random sources and their reversals, each with an end token: both `[count, length + 1]`."""
        sources = FIRST_SYMBOL + torch.rand(count, self.symbols).argsort(dim=1)[:, : self.length]
        end = torch.full((count, 1), END_TOKEN)
        return torch.cat([sources, end], dim=1), torch.cat([sources.flip(1), end], dim=1)


def tiny_model(vocab_size: int, seed: int, **overrides: Any) -> RandomTransformerForConditionalGeneration:
    """A random model with one layer per stack, four heads and d_model 64, unless overridden."""
    sizes: dict[str, Any] = {"d_model": 64, "d_ff": 128, "num_heads": 4, "encoder_layers": 1, "decoder_layers": 1}
    config = RandomTransformerConfig(**{"vocab_size": vocab_size, "dropout": 0.0, **sizes, **overrides})
    torch.manual_seed(seed)
    return RandomTransformerForConditionalGeneration(config).eval()


def train(model: nn.Module, sample_batch: Callable[[], Batch], steps: int, learning_rate: float = 3e-3) -> float:
    """Train on a new batch at each step, with a warm-up of a fifth of the steps and cosine decay.

    Returns:
        The mean loss of the last tenth of the steps, in nats per token.
    """
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.98))
    schedule = OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=0.2)
    losses = []
    model.train()
    for _ in range(steps):
        source, labels = sample_batch()
        loss = model(source, labels=labels).loss
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
    """The fraction of `count` new sources that the model reverses correctly.

    One forward pass with teacher forcing is sufficient: greedy search generates the labels if and only if every label
    is the most probable token given the previous ones.
    """
    sources, labels = task.sample(count)
    most_probable = model(input_ids=sources, labels=labels).logits.argmax(dim=-1)
    return (most_probable == labels).all(dim=1).float().mean().item()
