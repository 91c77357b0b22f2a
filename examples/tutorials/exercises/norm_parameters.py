"""Exercise 21: the learned scale and shift of layer normalization, gamma and beta (paper 3.1; Ba et al. 2016)."""

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..report import console, show_table
from .tasks import Reversal, exact_match, tiny_model, train

TASK = Reversal(symbols=10, length=6)
ORDERS = ("post", "pre")


@dataclass
class Training:
    """`gamma` is the mean and the standard deviation of all scales after the training."""

    loss: float
    exact_match: float
    gamma: tuple[float, float]


@dataclass
class NormResult:
    """Models with and without learned gamma and beta.

    Attributes:
        trained: by order of the norm and whether gamma and beta were learned.
        folded: the largest change of a logit, relative to the largest logit, when gamma and beta of a trained pre-norm
            model are multiplied into the linear layers that follow them.
    """

    trained: dict[tuple[str, bool], Training] = field(default_factory=dict)
    folded: float = 0.0


def experiment(seed: int, steps: int = 250) -> NormResult:
    result = NormResult()
    for order in ORDERS:
        for learned in (True, False):
            model = tiny_model(TASK.vocab_size, seed, norm_order=order)
            for norm in norms(model):
                norm.requires_grad_(learned)
            loss = train(model, lambda: TASK.sample(64), steps)
            gamma = torch.cat([norm.weight.detach() for norm in norms(model)])
            scores = Training(loss, exact_match(model, TASK), (gamma.mean().item(), gamma.std().item()))
            result.trained[order, learned] = scores
            if order == "pre" and learned:
                result.folded = fold_difference(model)
    return result


def norms(model: nn.Module) -> Iterator[nn.LayerNorm]:
    return (module for module in model.modules() if isinstance(module, nn.LayerNorm))


@torch.no_grad()
def fold_difference(model: Any) -> float:
    """Compare a pre-norm model with one whose norms in the layers have gamma 1 and beta 0."""
    folded, (sources, labels) = deepcopy(model).double(), TASK.sample(100)
    for layer in [*folded.model.encoder.layers, *folded.model.decoder.layers]:
        attention = layer.self_attn
        fold(layer.self_attn_layer_norm, attention.q_proj, attention.k_proj, attention.v_proj)
        fold(layer.final_layer_norm, layer.fc1)
        if hasattr(layer, "encoder_attn"):  # the keys and values of cross-attention do not pass this norm
            fold(layer.encoder_attn_layer_norm, layer.encoder_attn.q_proj)
    logits = deepcopy(model).double()(input_ids=sources, labels=labels).logits
    return ((folded(input_ids=sources, labels=labels).logits - logits).abs().max() / logits.abs().max()).item()


def fold(norm: Any, *linear_layers: Any) -> None:
    """W·(gamma ∗ x + beta) + b = (W ∗ gamma)·x + (W·beta + b), in place."""
    for linear in linear_layers:
        linear.bias += linear.weight @ norm.bias
        linear.weight *= norm.weight
    norm.weight.fill_(1.0)
    norm.bias.zero_()


def show(result: NormResult, _folder: Path) -> None:
    rows = [
        (
            f"{order}-norm",
            "learned" if learned else "1 and 0",
            f"{scores.loss:.3f}",
            f"{scores.exact_match:.1%}",
            f"{scores.gamma[0]:.2f} ± {scores.gamma[1]:.2f}",
        )
        for (order, learned), scores in result.trained.items()
    ]
    columns = ("order", "gamma and beta", "loss, nats per token", "exact match", "gamma afterwards")
    show_table("Trained to reverse six symbols", columns, rows)
    console.print(
        f"Change of the logits if they are folded into the next linear layers: {result.folded:.1g} (relative)"
    )
