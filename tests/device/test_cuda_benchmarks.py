"""`python -m benchmarks gpu` on the simulated GPU, with the sizes of its smoke test."""

import dataclasses
import json

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.gpu import command, first, graphs
from benchmarks.gpu.settings import SMOKE
from benchmarks.memory import MIB
from benchmarks.models import marian, ours
from benchmarks.timing import paired
from tests.device.test_cuda_device import COUNTED, device_tensor
from tests.helpers.cuda_graphs import CUDAGraph

SLOW = ("checks", "tests", "train")
SKIPPED = {
    "devices": {"this build of torch has no NCCL"},
    "first": {"not installed", "the kernel of this build of torch has no backward pass"},
}


@pytest.fixture
def measured(tmp_path, monkeypatch):
    """Run a part in a process that is forked from this one, which has the device, and return its report."""

    def run(part):
        monkeypatch.setattr(command, "SMOKE", dataclasses.replace(SMOKE, start_method="fork"))
        main(["gpu", "--smoke", "--output", str(tmp_path), "--parts", part])
        return json.loads((tmp_path / f"{part}.json").read_text())

    return run


def part_parameters():
    return [pytest.param(part, marks=pytest.mark.long if part in SLOW else ()) for part in command.PARTS]


@pytest.mark.parametrize("part", part_parameters())
def test_every_row_is_measured_or_skipped_with_a_reason(part, measured):
    report = measured(part)
    assert report["environment"]["device"] == "Simulated CUDA"
    assert report["error"] is None
    assert report["rows"]
    for row in report["rows"]:
        assert row.get("figures") or row["skipped"] in SKIPPED[part], row
        assert not row.get("error"), row


def test_too_many_synchronizations_are_a_failure(measured, tmp_path, monkeypatch):
    monkeypatch.setattr(first, "rows", first.speed_rows)
    monkeypatch.setattr(first, "MOST_SYNCHRONIZATIONS", 0.5)
    with pytest.raises(SystemExit, match=r"failed parts: first$"):
        measured("first")
    errors = [row["error"] for row in json.loads((tmp_path / "first.json").read_text())["rows"]]
    assert errors == [None, *2 * ["synchronizations must be at most 0.5, got 1.00."]]


@pytest.mark.parametrize("name", COUNTED)
def test_synchronizations_are_those_of_which_pytorch_warns(name):
    """It does not warn of copies from pageable memory and of `torch.cuda.synchronize`."""
    call, kinds = COUNTED[name]
    x = device_tensor()
    assert first.synchronizations(lambda: call(x)) == sum(kind not in ("pageable", "synchronize") for kind in kinds)


def test_captured_steps_are_compared_with_steps_that_are_not_captured(monkeypatch):
    replayed = []

    def measured(ours, theirs, pairs):
        for candidate in (ours, theirs):
            replays.clear()
            candidate()
            replayed.append(bool(replays))
        return paired(ours, theirs, pairs)

    replays, replay = [], CUDAGraph.replay
    monkeypatch.setattr(CUDAGraph, "replay", lambda self: replays.append(self) or replay(self))
    monkeypatch.setattr(graphs, "paired", measured)
    model, peer = (make(SMOKE.checked_size).to("cuda").eval() for make in (ours, marian))
    graphs.measure(model, peer, torch.tensor([[5, 6, 7]], device="cuda"), num_beams=1, tokens=4, pairs=1)
    assert replayed == [True, False, False, False]  # the second comparison is with Marian


def test_peak_of_memory_excludes_what_was_allocated_before():
    earlier_tensors = [mebibytes(8)]

    def build():
        weights = mebibytes(2)
        return lambda size: (weights, mebibytes(size))

    _, peak = first.with_peak(build, 3)
    assert peak == pytest.approx(5, abs=0.1)
    del earlier_tensors


def mebibytes(count):
    return torch.empty(count * MIB, dtype=torch.uint8, device="cuda")
