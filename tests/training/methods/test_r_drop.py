"""R-Drop: the loss and its gradient, and a training step with two passes."""

import pytest
import torch
from torch.nn.functional import cross_entropy, kl_div

from modeling_random_transformer import ops_random_transformer as ops
from modeling_random_transformer.training.methods.r_drop import RDropLoss
from tests.helpers.models import assert_near
from tests.helpers.trainer import new_trainer
from tests.helpers.training import loss_and_gradient


@pytest.mark.parametrize("rows_at_a_time", [4, 100])
@pytest.mark.parametrize(("smoothing", "alpha"), [(0.0, 5.0), (0.1, 1.0)])
def test_loss_and_gradient_equal_pytorch(rows_at_a_time, smoothing, alpha, monkeypatch):
    monkeypatch.setattr(ops, "LOSS_CHUNK_CPU", rows_at_a_time * 11)
    arguments = torch.randn(4, 3, 11).double() * 3, torch.tensor([[1, 2, -100], [3, 10, 5]]), torch.tensor(9)

    def reference(outputs, labels, count):
        """Half of the paper's loss."""
        rows = outputs["logits"].flatten(0, 1).log_softmax(dim=-1)
        entropy = cross_entropy(rows, labels.repeat(2, 1).flatten(), label_smoothing=smoothing, reduction="sum")
        p, q = (part[labels.flatten() != -100] for part in rows.chunk(2))
        divergences = (kl_div(x, y, log_target=True, reduction="sum") for x, y in ((p, q), (q, p)))
        return (entropy + alpha * sum(divergences) / 2) / 2 / count

    ours = loss_and_gradient(RDropLoss(smoothing, alpha), *arguments, scale=3.0)
    torch.testing.assert_close(ours, loss_and_gradient(reference, *arguments, scale=3.0))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_gradient_is_the_rounded_exact_gradient(dtype):
    logits, labels = torch.randn(4, 4, 50).to(dtype), torch.randint(0, 50, (2, 4))
    rounded, exact = (
        loss_and_gradient(RDropLoss(0.1, 5.0), values, labels, 3000, scale=2.0**12)[1].double()
        for values in (logits, logits.double())
    )
    assert_near(rounded, exact, 8 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_does_not_round_the_divergence(dtype):
    """The scale is the first one of PyTorch's `GradScaler`, with which a gradient in float16 would overflow."""
    arguments = torch.randn(4, 4, 50), torch.randint(0, 50, (2, 4)), 8
    expected = loss_and_gradient(RDropLoss(0.1, 5.0), *arguments, scale=2.0**16)
    with torch.autocast("cpu", dtype):
        actual = loss_and_gradient(RDropLoss(0.1, 5.0), *arguments, scale=2.0**16)
    torch.testing.assert_close(actual, expected)


def test_equal_passes_have_no_divergence_and_one_pass_has_the_cross_entropy():
    logits, labels = torch.randn(2, 3, 7), torch.randint(0, 7, (2, 3))
    expected = cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    for passes in (1, 2):
        loss = RDropLoss(0.1, 5.0)({"logits": logits.repeat(passes, 1, 1)}, labels)
        torch.testing.assert_close(loss, expected)


def test_training_has_two_passes(tmp_path):
    options = {"max_steps": 1, "save_strategy": "no", "gradient_accumulation_steps": 2}
    trainer = new_trainer(tmp_path, r_drop_alpha=5.0, **options)
    trainer.model.config.dropout = 0.1
    passes = []
    trainer.model.register_forward_hook(lambda _model, _inputs, outputs: passes.append(outputs.logits.chunk(2)))
    trainer.train()
    assert len(passes) == 2
    assert all(first.shape == second.shape and (first != second).any() for first, second in passes)
