"""R-Drop: the loss and its gradient, and a training step with two passes."""

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div

from modeling_random_transformer.training import r_drop
from modeling_random_transformer.training.r_drop import RDropLoss
from tests.helpers.trainer_worker import new_trainer


def reference(logits, labels, smoothing, alpha, count):
    """Half of the paper's loss, by PyTorch's functions."""
    rows = logits.flatten(0, 1).log_softmax(dim=-1)
    entropy = cross_entropy(rows, labels.repeat(2, 1).flatten(), label_smoothing=smoothing, reduction="sum")
    p, q = (part[labels.flatten() != -100] for part in rows.chunk(2))
    divergences = (kl_div(x, y, log_target=True, reduction="sum") for x, y in ((p, q), (q, p)))
    return (entropy + alpha * sum(divergences) / 2) / 2 / count


@pytest.mark.parametrize("rows_at_a_time", [4, 100])
@pytest.mark.parametrize(("smoothing", "alpha"), [(0.0, 5.0), (0.1, 1.0)])
def test_loss_and_gradient_equal_pytorch(rows_at_a_time, smoothing, alpha, monkeypatch):
    monkeypatch.setattr(r_drop, "LOSS_CHUNK_CPU", rows_at_a_time * 11)
    logits = torch.randn(4, 3, 11, dtype=torch.float64).mul(3).requires_grad_()
    labels = torch.tensor([[1, 2, -100], [3, 10, 5]])
    theirs = reference(logits, labels, smoothing, alpha, count=9)
    (their_gradient,) = torch.autograd.grad(3 * theirs, logits)
    ours = RDropLoss(smoothing, alpha)({"logits": logits * 1.0}, labels, torch.tensor(9))
    (our_gradient,) = torch.autograd.grad(3 * ours, logits)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(our_gradient, their_gradient)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype):
    logits, labels = torch.randn(4, 4, 50).to(dtype), torch.randint(0, 50, (2, 4))
    gradients = []
    for precise in (logits.double().requires_grad_(), logits.clone().requires_grad_()):
        loss = RDropLoss(0.1, 5.0)({"logits": precise * 1.0}, labels, num_items_in_batch=3000)
        gradients.append(torch.autograd.grad(loss * 2.0**12, precise)[0])  # the loss scale of float16
    scale = gradients[0].abs().max().item()
    torch.testing.assert_close(gradients[1].double(), gradients[0], rtol=0, atol=8 * torch.finfo(dtype).eps * scale)


def test_equal_passes_have_no_divergence_and_one_pass_has_the_cross_entropy():
    logits, labels = torch.randn(2, 3, 7), torch.randint(0, 7, (2, 3))
    expected = cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    for passes in (1, 2):
        loss = RDropLoss(0.1, 5.0)({"logits": logits.repeat(passes, 1, 1)}, labels)
        torch.testing.assert_close(loss, expected)


def test_training_has_two_passes(tmp_path, monkeypatch):
    options = {"max_steps": 1, "save_strategy": "no", "gradient_accumulation_steps": 2}
    trainer = new_trainer(tmp_path, r_drop_alpha=5.0, **options)
    trainer.model.config.dropout = 0.1
    shapes = []

    def recorded(loss, outputs, labels, num_items_in_batch=None):
        shapes.append((len(outputs["logits"]), len(labels)))
        assert (outputs["logits"][: len(labels)] != outputs["logits"][-len(labels) :]).any()  # different dropout
        return call(loss, outputs, labels, num_items_in_batch)

    call = RDropLoss.__call__
    monkeypatch.setattr(RDropLoss, "__call__", recorded)
    trainer.train()
    assert shapes
    assert all(rows == 2 * pairs for rows, pairs in shapes)
