"""The simulated GPU itself: what it rejects and what it counts, as CUDA does."""

import pytest
import torch

from tests.device.simulated_device import synchronizations


def device_tensor():
    return torch.arange(6.0, device="cuda").view(2, 3)


MIXTURES = {
    "operands": lambda x: x + torch.ones(2, 3),
    "products": lambda x: x @ torch.ones(3),
    "devices": lambda x: x + torch.ones(2, 3, device="cuda:1"),
    "output": lambda x: torch.ones(2, 3).add_(x),
    "indices": lambda x: torch.nn.functional.embedding(torch.zeros(2, dtype=torch.long), x),
}


@pytest.mark.parametrize("name", MIXTURES)
def test_devices_cannot_be_mixed(name):
    with pytest.raises(RuntimeError, match="same device"):
        MIXTURES[name](device_tensor())


COUNTED = {
    "item": (lambda x: x.sum().item(), ["item"]),
    "bool": (lambda x: bool(x.all()), ["item"]),
    "to the CPU": (lambda x: x.cpu(), ["copy to CPU"]),
    "from the CPU": (lambda _: torch.ones(3).to("cuda"), ["copy to device"]),
    "a new tensor": (lambda _: torch.tensor([1, 2], device="cuda"), ["copy to device"]),
    "not pinned": (lambda _: torch.ones(3).to("cuda", non_blocking=True), ["pageable"]),
    "pinned": (lambda _: torch.ones(3).pin_memory().to("cuda", non_blocking=True), []),
    "boolean index": (lambda x: x[x > 2], ["aten::nonzero"]),
    "boolean assignment": (lambda x: x.index_put_((x > 9,), x[0, :0]), ["aten::nonzero"]),
    "in a backward pass": (lambda x: x.requires_grad_()[x > 2].sum().backward(), 2 * ["aten::nonzero"]),
    "index": (lambda x: x[torch.ones(2, dtype=torch.long, device="cuda")], []),
    "nonzero": (lambda x: x.nonzero(), ["aten::nonzero"]),
    "unique": (lambda x: x.unique(), ["aten::_unique2"]),
    "equal": (lambda x: torch.equal(x, x), ["aten::equal"]),
    "sorted": (lambda x: x.sort()[0] * 2 + x.sum(), []),
    "synchronize": (lambda _: torch.cuda.synchronize(), ["synchronize"]),
}


@pytest.mark.parametrize("name", COUNTED)
def test_synchronizations_are_counted(name):
    call, kinds = COUNTED[name]
    x = device_tensor()
    with synchronizations() as counts:
        call(x)
    assert [kind for kind, _ in counts.elements()] == kinds
