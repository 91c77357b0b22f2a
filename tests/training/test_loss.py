"""Label-smoothed cross-entropy, compared with its formula and with PyTorch."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from modeling_random_transformer import ops_random_transformer as ops
from modeling_random_transformer.training import SmoothedCrossEntropy


@pytest.mark.parametrize("rows_at_a_time", [5, 1000])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("overwrite", [False, True])
def test_loss_and_gradient_equal_pytorch(rows_at_a_time, smoothing, overwrite, monkeypatch):
    monkeypatch.setattr(ops, "LOSS_CHUNK_CPU", rows_at_a_time * 11)
    logits = torch.randn(3, 6, 11).mul(5).requires_grad_()
    labels = torch.randint(0, 11, (3, 6)).index_fill(1, torch.tensor([5]), -100)
    theirs = cross_entropy(logits.view(-1, 11), labels.view(-1), label_smoothing=smoothing, reduction="sum") / 24
    (their_gradient,) = torch.autograd.grad(3 * theirs, logits)
    computed = logits * 1.0  # like a model's logits, the output of an operation
    ours = SmoothedCrossEntropy(smoothing, overwrite)({"logits": computed}, labels, torch.tensor(24))
    (our_gradient,) = torch.autograd.grad(3 * ours, logits)
    assert overwrite or torch.equal(computed, logits)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(our_gradient, their_gradient)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_half_precision_gradient_is_the_rounded_exact_gradient(dtype):
    """3,000 tokens: their reciprocal is not a power of two, and float16 would underflow without loss scaling."""
    logits = torch.randn(2, 4, 50, dtype=dtype)
    labels = torch.randint(0, 50, (2, 4))
    gradients = []
    for precise in (logits.double().requires_grad_(), logits.clone().requires_grad_()):
        loss = SmoothedCrossEntropy(0.1)({"logits": precise}, labels, num_items_in_batch=3000)
        gradients.append(torch.autograd.grad(loss * 2.0**14, precise)[0])  # the loss scale of float16
    torch.testing.assert_close(gradients[1].double(), gradients[0], rtol=torch.finfo(dtype).eps, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize(("label", "count"), [(-100, None), (-100, 0), (1, torch.tensor(0))], ids=str)
def test_batch_of_ignored_labels_has_loss_and_gradient_0(label, count, overwrite, dtype):
    leaf = torch.randn(2, 3, 7, dtype=dtype, requires_grad=True)
    loss = SmoothedCrossEntropy(0.1, overwrite)({"logits": leaf * 1}, torch.full((2, 3), label), count)
    (3 * loss).backward()
    assert loss == 0
    assert not leaf.grad.any()


@pytest.mark.parametrize("shape", [(0, 3), (2, 0)])
def test_empty_batch_has_loss_0(shape):
    logits = torch.randn(*shape, 7, requires_grad=True)
    loss = SmoothedCrossEntropy(0.1)({"logits": logits}, torch.ones(shape, dtype=torch.long))
    loss.backward()
    assert loss == 0
    assert logits.grad.shape == logits.shape


def test_logits_of_minus_infinity():
    """Excluded tokens are valid unless they are a label of a counted row."""
    logits = torch.randn(2, 3, 7)
    logits[..., 0] = -torch.inf
    labels = torch.tensor([[1, 2, -100], [3, -100, 6]])
    leaf = logits.clone().requires_grad_()
    loss = SmoothedCrossEntropy(0.0)({"logits": leaf}, labels)
    loss.backward()
    expected_leaf = logits.clone().requires_grad_()
    expected = cross_entropy(expected_leaf.flatten(0, 1), labels.flatten())
    expected.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(leaf.grad, expected_leaf.grad)


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
