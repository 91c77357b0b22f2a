"""Captured passes of a model, and the arguments that allow them. (`tests/device` trains with them.)"""

import pytest
import torch

from modeling_random_transformer.extras.cuda_graphs import captured_passes
from modeling_random_transformer.extras.cuda_graphs.captured_passes import CapturedPasses
from modeling_random_transformer.training import TranslationTrainingArguments
from tests.helpers.cuda_graphs import simulated


def passes_of(model):
    """The passes of a linear model: the loss is the sum of its outputs, weighted by the number of items."""

    def passes(inputs, num_items):
        loss = model(inputs["states"]).sum() * num_items
        loss.backward()
        return loss.detach()

    return passes


def test_shapes_are_captured_at_their_second_batch(monkeypatch):
    monkeypatch.setattr(captured_passes, "MAX_GRAPHS", 2)
    model = torch.nn.Linear(3, 2).double()
    with simulated():
        captured = CapturedPasses(model)
        for rows in (1, 2, 1, 3, 3, 2, 2, 1):
            model.zero_grad()
            states = torch.randn(rows, 3, dtype=torch.float64)
            loss = captured(passes_of(model), {"states": states}, num_items=rows)
            torch.testing.assert_close(loss, rows * model(states).sum().detach())
            torch.testing.assert_close(model.weight.grad, rows * states.sum(0).expand(2, 3))
    assert len(captured.graphs) == 2  # of 1 and 3 rows


def test_weights_with_other_memory_are_captured_again():
    model = torch.nn.Linear(3, 2)
    states = torch.ones(1, 3)
    with simulated():
        captured = CapturedPasses(model)
        for _ in range(3):
            captured(passes_of(model), {"states": states}, 1)
        model.weight.data = torch.zeros(2, 3)
        for _ in range(3):
            loss = captured(passes_of(model), {"states": states}, 1)
    assert loss == model.bias.sum()


def test_a_graph_reads_all_values_from_the_memory_of_its_device():
    """The value of a number on the CPU would be a constant of the graph."""
    model = torch.nn.Linear(3, 2, device="meta")
    devices = []

    def passes(inputs, num_items):
        devices.append(torch.as_tensor(num_items).device.type)
        return model(inputs["states"]).sum() * num_items

    with simulated():
        captured = CapturedPasses(model)
        for _ in range(2):
            captured(passes, {"states": torch.ones(1, 3, device="meta")}, num_items=1)
    assert devices[-1] == "meta"


def test_graphs_need_a_gpu(tmp_path):
    with pytest.raises(ValueError, match="cuda_graphs must be False with 1 processes on the device cpu, got True"):
        TranslationTrainingArguments(tmp_path, cuda_graphs=True, use_cpu=True)
