"""Each of two processes loads a folder split over both, and compares the result with the complete model.

Started by `torch.distributed.run` with the folders to load. Each folder is split in both ways.
"""

import sys

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import AutoModelForSeq2SeqLM
from transformers.distributed import DistributedConfig

import modeling_random_transformer  # noqa: F401  (registers the Auto classes)
from tests.helpers.models import padded_batch, random_ids

# In float64: in float32 the difference depends on the order in which a CPU adds.
DTYPE = torch.float64
TOLERANCE = {"rtol": 1e-9, "atol": 1e-9}
SIZES = {"tp": {"tp_size": 2}, "fsdp": {"fsdp_size": 2}}


def compare(kind: str, folder: str) -> None:
    whole = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=DTYPE)
    distributed_config = DistributedConfig(**SIZES[kind])
    split = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=DTYPE, distributed_config=distributed_config)
    assert_split(kind, split)
    compare_generation(whole, split)  # before any forward pass: generate() starts with the encoder alone
    compare_forward_and_backward(whole, split)
    compare_generation(whole, split)


def assert_split(kind: str, model: torch.nn.Module) -> None:
    """Each process has about half of the weights; both have only the weights that cannot be split."""
    held = total = 0
    for parameter in model.parameters():
        total += parameter.numel()
        held += parameter.to_local().numel() if isinstance(parameter, DTensor) else parameter.numel()
    assert held < 0.6 * total, f"{kind}: this process has {held} of {total} weights"


def compare_forward_and_backward(whole: torch.nn.Module, split: torch.nn.Module) -> None:
    batch = padded_batch([7, 4]) | {"labels": random_ids(2, 6, seed=1)}
    expected, actual = whole(**batch), split(**batch)
    torch.testing.assert_close(actual.logits, expected.logits, **TOLERANCE)
    torch.testing.assert_close(actual.loss, expected.loss, **TOLERANCE)
    expected.loss.backward()
    actual.loss.backward()
    gradients = {name: parameter.grad for name, parameter in split.named_parameters()}
    for name, parameter in whole.named_parameters():
        gradient = gradients.pop(name)
        gradient = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
        torch.testing.assert_close(gradient, parameter.grad, **TOLERANCE, msg=lambda m, name=name: f"{name}: {m}")
    assert not gradients


def compare_generation(whole: torch.nn.Module, split: torch.nn.Module) -> None:
    batch = padded_batch([7, 4])
    for options in ({}, {"num_beams": 3, "num_return_sequences": 2}, {"cache_implementation": "static"}):
        expected, actual = (model.generate(**batch, max_new_tokens=8, **options) for model in (whole, split))
        assert torch.equal(actual, expected), options


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in SIZES:
        for folder in sys.argv[1:]:
            print(f"{kind}: {folder}", file=sys.stderr)  # shown if the comparison fails
            compare(kind, folder)
    dist.barrier()
    dist.destroy_process_group()
