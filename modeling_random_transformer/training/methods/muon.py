"""Muon: updates of equal size in all directions of a matrix, for small corpora."""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from ..training_arguments import TranslationTrainingArguments

MOMENTUM = 0.95
COEFFICIENTS = (3.4445, -4.775, 2.0315)  # the polynomial x ↦ ax + bx³ + cx⁵, applied to the singular values
NEWTON_SCHULZ_ITERATIONS = 5
ADAM_RMS = 0.2  # the root mean square of Adam's updates, so that one learning rate serves both optimizers


class MuonWith(Optimizer):
    """Muon for matrices, and another optimizer for all other weights.

    Muon orthogonalizes the momentum of a matrix (Jordan et al. 2024, https://kellerjordan.github.io/posts/muon/). Its
    updates have the root mean square of Adam's (Liu et al. 2025, https://arxiv.org/abs/2502.16982, section 2.2).
    `torch.optim.Muon` always computes in bfloat16, which takes more than 20 times as long on a CPU without instructions
    for it, and updates one matrix after the other.

    Args:
        matrices: the weights of Muon, each `[rows, columns]`.
        lr: learning rate of Muon.
        weight_decay: weight decay of Muon.
        dtype: the type in which updates are orthogonalized.
        other: the optimizer of the other weights. Both have one state and one list of parameter groups.
    """

    def __init__(self, matrices: list[Tensor], lr: float, weight_decay: float, dtype: torch.dtype, other: Optimizer):
        self.dtype = dtype
        self.other = other
        matrix_group = {"params": matrices, "lr": lr, "weight_decay": weight_decay}
        super().__init__([matrix_group, *other.param_groups], {"lr": lr})  # schedules read the default learning rate
        self._share_state()

    def _share_state(self) -> None:
        self.other.state = self.state
        self.other.param_groups = self.param_groups[1:]

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load what `state_dict()` returned, for both optimizers."""
        super().load_state_dict(state_dict)
        self._share_state()

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all weights that have a gradient. Matrices of equal shape are orthogonalized together."""
        loss = self.other.step(closure)  # computes the gradients, if a closure is given
        group = self.param_groups[0]
        by_shape = defaultdict(list)
        for weight in group["params"]:
            if weight.grad is not None:
                by_shape[weight.shape].append(weight)
        for weights in by_shape.values():
            self._update(weights, group["lr"], group["weight_decay"])
        return loss

    def _update(self, weights: list[Tensor], lr: float, weight_decay: float) -> None:
        directions = torch.stack(self._directions(weights))
        updates = orthogonalize(directions.to(self.dtype))
        updates = updates.to(weights[0].dtype)
        longer_side = max(weights[0].shape)
        scale = ADAM_RMS * longer_side**0.5
        # One kernel for all matrices on a GPU.
        torch._foreach_mul_(weights, 1 - lr * weight_decay)
        torch._foreach_add_(weights, list(updates), alpha=-lr * scale)

    def _directions(self, weights: list[Tensor]) -> list[Tensor]:
        """Nesterov's momentum."""
        averages = []
        for weight in weights:
            state = self.state[weight]
            if not state:
                state["momentum"] = torch.zeros_like(weight)
            averages.append(state["momentum"])
        gradients: list[Any] = [weight.grad for weight in weights]
        torch._foreach_lerp_(averages, gradients, 1 - MOMENTUM)
        return list(torch._foreach_lerp(gradients, averages, MOMENTUM))


def orthogonalize(matrices: Tensor) -> Tensor:
    """Matrices with the same singular vectors and singular values of about 1 (0.7 to 1.2, unless they are very small).

    Args:
        matrices: `[matrices, rows, columns]`.
    """
    if matrices.shape[1] > matrices.shape[2]:  # products of the shorter side are smaller
        return orthogonalize(matrices.mT).mT
    a, b, c = COEFFICIENTS
    norms = matrices.norm(dim=(1, 2), keepdim=True)
    x = matrices / norms.clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_ITERATIONS):
        square = x @ x.mT
        factor = torch.baddbmm(square, square, square, beta=b, alpha=c)
        x = torch.baddbmm(x, factor, x, beta=a)
    return x


def muon_optimizer(
    model: Any, args: TranslationTrainingArguments, lr: float, other: Callable[[list[dict[str, Any]]], Optimizer]
) -> MuonWith:
    """Muon for the trainable matrices of the layers.

    Args:
        model: the model to train.
        args: the training arguments. Muon uses `weight_decay`. With `bf16`, updates are orthogonalized in bfloat16.
        lr: learning rate of Muon.
        other: a function that creates the optimizer of embeddings, output layer, biases and norms, from parameter
            groups.
    """
    modules = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    if (output_layer := model.get_output_embeddings()) is not None:
        modules.append(output_layer)
    outer_weights = {id(module.weight) for module in modules}
    matrices = []
    other_weights = []
    for weight in model.parameters():
        if not weight.requires_grad:
            continue
        if weight.ndim == 2 and id(weight) not in outer_weights:
            matrices.append(weight)
        else:
            other_weights.append(weight)
    dtype = torch.bfloat16 if args.bf16 else torch.float32
    other_optimizer = other([{"params": other_weights, "weight_decay": 0.0}])
    return MuonWith(matrices, lr, args.weight_decay, dtype, other_optimizer)
