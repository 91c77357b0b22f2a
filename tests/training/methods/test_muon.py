"""Muon: its updates, which weights it gets, and one state with the other optimizer."""

import pytest
import torch
from torch.optim import AdamW

from modeling_random_transformer.training.checkpoints import all_checkpoints
from modeling_random_transformer.training.methods.muon import MuonWith, orthogonalize
from tests.helpers.trainer import new_trainer

OUTER = {"model.shared.weight", "lm_head.weight"}


def optimizer_of(weights, dtype=torch.float64, **options):
    bias = torch.zeros(3, requires_grad=True)
    return MuonWith(weights, options.get("lr", 0.1), options.get("weight_decay", 0.0), dtype, AdamW([bias]))


@pytest.mark.parametrize("shape", [(4, 4), (4, 9), (9, 4), (1, 5)])
def test_orthogonalized_matrices_keep_their_singular_vectors(shape):
    matrices = torch.randn(3, *shape).double()
    for matrix, result in zip(matrices, orthogonalize(matrices), strict=True):
        u, _, v = torch.linalg.svd(matrix, full_matrices=False)
        values = u.mT @ result @ v.mT
        assert (values - values.diag().diag()).abs().max() < 1e-9
        assert (values.diag() - 0.95).abs().max() < 0.3


def test_a_matrix_of_zeros_stays_finite():
    assert orthogonalize(torch.zeros(2, 3, 4)).eq(0).all()


@pytest.mark.parametrize("weight_decay", [0.0, 0.5])
def test_steps_equal_those_of_pytorch(weight_decay):
    """PyTorch's Muon orthogonalizes in bfloat16, with a rounding error of 2**-8."""
    shapes = [(6, 6), (6, 12), (12, 6), (6, 6)]
    ours = [torch.randn(shape, requires_grad=True) for shape in shapes]
    theirs = [weight.detach().clone().requires_grad_() for weight in ours]
    options = {"lr": 0.01, "weight_decay": weight_decay}
    reference = torch.optim.Muon(theirs, momentum=0.95, adjust_lr_fn="match_rms_adamw", **options)
    optimizer = optimizer_of(ours, torch.float32, **options)
    start = [weight.detach().clone() for weight in ours]
    for _ in range(3):
        for weight, expected in zip(ours, theirs, strict=True):
            weight.grad = torch.randn_like(weight)
            expected.grad = weight.grad.clone()
        optimizer.step()
        reference.step()
    for weight, expected, before in zip(ours, theirs, start, strict=True):
        assert (weight - expected).norm() < 0.1 * (expected - before).norm()


def test_updates_have_the_size_of_those_of_adam():
    weight = torch.randn(64, 256, requires_grad=True)
    before = weight.detach().clone()
    weight.grad = torch.randn_like(weight)
    optimizer_of([weight], lr=0.1).step()
    assert 0.5 < (weight - before).square().mean().sqrt() / (0.1 * 0.2) < 1.2


def test_a_closure_is_evaluated_once_and_weights_without_gradient_are_unchanged():
    used, unused = torch.ones(2, 2, requires_grad=True), torch.ones(2, 2, requires_grad=True)
    optimizer, calls = optimizer_of([used, unused]), []

    def closure():
        calls.append(1)
        loss = used.square().sum()
        loss.backward()
        return loss

    assert optimizer.step(closure) == 4.0
    assert len(calls) == 1
    assert used.ne(1).any()
    assert unused.eq(1).all()


def test_matrices_of_the_layers_get_muon_and_all_other_weights_adam(tmp_path):
    trainer = new_trainer(tmp_path, muon=True, weight_decay=0.1)
    names = {id(weight): name for name, weight in trainer.model.named_parameters()}
    muon, adam = trainer.create_optimizer().param_groups
    muon_names, adam_names = ({names[id(weight)] for weight in group["params"]} for group in (muon, adam))
    assert muon_names | adam_names == set(names.values())
    assert not muon_names & adam_names
    assert adam_names == {
        name for name, weight in trainer.model.named_parameters() if weight.ndim == 1 or name in OUTER
    }
    assert (muon["lr"], adam["lr"]) == (1e-3, 1e-3)
    assert (muon["weight_decay"], adam["weight_decay"]) == (0.1, 0.0)


def test_frozen_weights_are_not_updated(tmp_path):
    trainer = new_trainer(tmp_path, muon=True)
    trainer.model.requires_grad_(False)
    trainer.model.lm_head.weight.requires_grad_()
    muon, adam = trainer.create_optimizer().param_groups
    assert not muon["params"]
    assert [id(weight) for weight in adam["params"]] == [id(trainer.model.lm_head.weight)]


def test_a_schedule_with_a_minimum(tmp_path):
    schedule = {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-4}}
    trainer = new_trainer(tmp_path, muon=True, warmup_steps=0, **schedule)
    trainer.train()
    assert [group["lr"] for group in trainer.optimizer.param_groups] == pytest.approx([1e-4, 1e-4])


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"max_grad_norm": 1.0, "gradient_accumulation_steps": 2}])
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path, options):
    options |= {"muon": True, "save_steps": 2, "max_steps": 6}
    whole = new_trainer(tmp_path / "out", **options)
    whole.train()
    resumed = new_trainer(tmp_path / "out", **options)
    checkpoint = next(path for path in all_checkpoints(tmp_path / "out") if path.name == "checkpoint-2")
    resumed.train(resume_from_checkpoint=str(checkpoint))
    for (name, expected), weight in zip(whole.model.named_parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(expected, weight), name
    rates = [group["lr"] for group in whole.optimizer.param_groups]
    assert rates == [group["lr"] for group in resumed.optimizer.param_groups]
    assert len(set(rates)) == 1  # the schedule changes both
