"""Exercise 22: layer normalization against batch normalization (Ba et al. 2016; Ioffe and Szegedy 2015)."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..report import show_table
from .tasks import Reversal, exact_match, tiny_model, train

TASK = Reversal(symbols=10, length=6)
LAYER, BATCH = "layer normalization", "batch normalization"
COUNT = 100  # sequences of a test


class BatchNorm(nn.Module):
    """Each of the d_model numbers has mean 0 and variance 1 over all tokens of all sentences of the batch.

    In evaluation, mean and variance are running means from training. `nn.BatchNorm1d` computes the same, but raises an
    error for a single token, whose variance is 0.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, d_model: int, momentum: float = 0.1):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(d_model)), nn.Parameter(torch.zeros(d_model))
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(d_model))
        self.register_buffer("variance", torch.ones(d_model))

    def forward(self, states: Tensor) -> Tensor:
        """`[batch, length, d_model]` in and out."""
        mean, variance = self.mean, self.variance
        if self.training:
            variance, mean = torch.var_mean(states, dim=(0, 1), correction=0)
            self.mean.lerp_(mean.detach(), self.momentum)
            self.variance.lerp_(variance.detach(), self.momentum)
        return self.weight * (states - mean) / (variance + 1e-6).sqrt() + self.bias


@dataclass
class BatchNormResult:
    """By kind of normalization.

    Attributes:
        influence: the largest change of a sentence's states when the other sentences of its batch are replaced, during
            training.
        evaluation: exact match in evaluation mode.
        batch: exact match of batches of `COUNT` in training mode, that is, with the batch's own mean and variance.
        stepwise: exact match of one sentence in training mode, generated token by token. The decoder then normalizes
            its first state over a single token.
    """

    influence: dict[str, float] = field(default_factory=dict)
    evaluation: dict[str, float] = field(default_factory=dict)
    batch: dict[str, float] = field(default_factory=dict)
    stepwise: dict[str, float] = field(default_factory=dict)


def experiment(seed: int, steps: int = 250, count: int = COUNT) -> BatchNormResult:
    result = BatchNormResult()
    for kind in (LAYER, BATCH):
        model = build(kind, seed)
        train(model, lambda: TASK.sample(64), steps)
        result.evaluation[kind] = exact_match(model, TASK, count)
        model.train()  # there is no dropout
        result.influence[kind] = influence(model)
        result.batch[kind] = exact_match(model, TASK, count)
        result.stepwise[kind] = sum(generated_exactly(model) for _ in range(count)) / count
    return result


def build(kind: str, seed: int) -> Any:
    model = tiny_model(TASK.vocab_size, seed)
    if kind == BATCH:
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if isinstance(child, nn.LayerNorm):
                    setattr(module, name, BatchNorm(model.config.d_model))
    return model


@torch.no_grad()
def influence(model: Any) -> float:
    sources, _ = TASK.sample(32)
    second_batch, _ = TASK.sample(32)
    second_batch[0] = sources[0]
    first, second = (model.model.encoder(batch).last_hidden_state[0] for batch in (sources, second_batch))
    return (first - second).abs().max().item()


@torch.no_grad()
def generated_exactly(model: Any) -> bool:
    """Whether greedy search reverses one new sequence, without a cache."""
    source, labels = TASK.sample(1)
    target = torch.full((1, 1), model.config.decoder_start_token_id)
    while target.shape[1] <= labels.shape[1]:
        logits = model(input_ids=source, decoder_input_ids=target, use_cache=False).logits[:, -1]
        target = torch.cat([target, logits.argmax(dim=-1, keepdim=True)], dim=1)
    return torch.equal(target[:, 1:], labels)


def show(result: BatchNormResult, _folder: Path) -> None:
    rows = [
        (
            kind,
            f"{result.influence[kind]:.2g}",
            f"{result.evaluation[kind]:.1%}",
            f"{result.batch[kind]:.1%}",
            f"{result.stepwise[kind]:.1%}",
        )
        for kind in (LAYER, BATCH)
    ]
    columns = (
        "",
        "influence of other sentences",
        "evaluation mode",
        f"training mode, batch of {COUNT}",
        "one, token by token",
    )
    show_table("Reversing six symbols: exact match", columns, rows)
