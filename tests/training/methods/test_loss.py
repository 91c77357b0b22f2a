"""Label-smoothed cross-entropy, compared with its formula and with PyTorch."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from modeling_random_transformer import ops_random_transformer as ops
from modeling_random_transformer.training import SmoothedCrossEntropy
from tests.helpers.training import loss_and_gradient


@pytest.mark.parametrize("rows_at_a_time", [5, 1000])
@pytest.mark.parametrize(("smoothing", "excluded"), [(0.0, False), (0.1, False), (0.0, True)])
@pytest.mark.parametrize("overwrite", [False, True])
def test_loss_and_gradient_equal_pytorch(rows_at_a_time, smoothing, excluded, overwrite, monkeypatch):
    """Also with tokens that are excluded by a logit of minus infinity."""
    monkeypatch.setattr(ops, "LOSS_CHUNK_CPU", rows_at_a_time * 11)
    logits = torch.randn(3, 6, 11) * 5
    if excluded:
        logits[..., 0] = -torch.inf
    labels = torch.randint(1, 11, (3, 6)).index_fill(1, torch.tensor([5]), -100)

    def reference(outputs, labels, count):
        rows = outputs["logits"].flatten(0, 1)
        return cross_entropy(rows, labels.flatten(), label_smoothing=smoothing, reduction="sum") / count

    arguments = logits, labels, torch.tensor(24)
    ours = loss_and_gradient(SmoothedCrossEntropy(smoothing, overwrite), *arguments, scale=3.0)
    torch.testing.assert_close(ours, loss_and_gradient(reference, *arguments, scale=3.0))


def test_only_overwritten_logits_change():
    labels = torch.ones(2, 3, dtype=torch.long)
    for overwrite in (False, True):
        logits = torch.randn(2, 3, 7, requires_grad=True) * 1
        before = logits.detach().clone()
        SmoothedCrossEntropy(0.1, overwrite)({"logits": logits}, labels)
        assert torch.equal(logits, before) != overwrite


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_gradient_is_the_rounded_exact_gradient(dtype):
    """3,000 tokens: their reciprocal is not a power of two, and float16 would underflow without loss scaling."""
    logits, labels = torch.randn(2, 4, 50, dtype=dtype), torch.randint(0, 50, (2, 4))
    rounded, exact = (
        loss_and_gradient(SmoothedCrossEntropy(0.1), values, labels, 3000, scale=2.0**14)[1].double()
        for values in (logits, logits.double())
    )
    torch.testing.assert_close(rounded, exact, rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(
    ("shape", "label", "count"),
    [((2, 3), -100, None), ((2, 3), -100, 0), ((2, 3), 1, torch.tensor(0)), ((0, 3), 1, None), ((2, 0), 1, None)],
    ids=str,
)
def test_a_batch_without_counted_labels_has_loss_and_gradient_0(shape, label, count, overwrite, dtype):
    loss = SmoothedCrossEntropy(0.1, overwrite)
    value, gradient = loss_and_gradient(loss, torch.randn(*shape, 7, dtype=dtype), torch.full(shape, label), count)
    assert value == 0
    assert gradient.shape == (*shape, 7)
    assert not gradient.any()


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("factor", [1, 2])
def test_several_backward_passes_accumulate(factor, overwrite):
    leaf = torch.randn(2, 3, 7, requires_grad=True)
    logits = leaf * 1 if overwrite else leaf
    loss = factor * SmoothedCrossEntropy(0.1, overwrite)({"logits": logits}, torch.ones(2, 3, dtype=torch.long))
    loss.backward(retain_graph=True)
    once = leaf.grad.clone()
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close(leaf.grad, 3 * once)
