"""`python -m benchmarks gpu`: the smoke test of all parts on a CPU, failing parts, and invalid arguments."""

import json
import math

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.__main__ import main
from benchmarks.gpu import command
from benchmarks.gpu.parts import checked, sentence_lengths
from benchmarks.gpu.recipe import recipe_batches
from benchmarks.gpu.settings import Settings
from benchmarks.gpu.utilization import training_flops
from benchmarks.train import random_batch
from tests.helpers.models import tiny_model


def report_of(folder, part):
    return json.loads((folder / f"{part}.json").read_text())


SKIPPED = {
    "not installed",
    "a CPU does not synchronize",
    "torch's int8 products saturate on this CPU",
    "the kernel of this build of torch has no backward pass",
}


@pytest.mark.long
def test_smoke_run_measures_every_row_of_every_part(tmp_path, capsys):
    assert main(["gpu", "--smoke", "--output", str(tmp_path)]) == 0
    for part in command.PARTS:
        report = report_of(tmp_path, part)
        assert report["error"] is None, part
        assert report["environment"]["torch"] == torch.__version__
        assert report["rows"], part
        for row in report["rows"]:
            assert row.get("skipped") in SKIPPED or row["figures"], row
            assert not row.get("error"), row
    page = (tmp_path / "report.md").read_text()
    assert page.startswith("# GPU report (smoke test on a CPU")
    assert page.count("\n## ") == len(command.PARTS)
    assert "failed" not in capsys.readouterr().out


@pytest.fixture
def run_part(tmp_path, monkeypatch):
    """Run one of the failing parts, with a time limit in seconds, and return its report."""

    def run(part, limit):
        monkeypatch.setattr(command, "PARTS", {part: f"tests.helpers.gpu_part_{part}"})
        monkeypatch.setattr(command, "LIMIT", limit)
        with pytest.raises(SystemExit) as exit_:
            main(["gpu", "--smoke", "--output", str(tmp_path), "--parts", part])
        assert exit_.value.code == f"python -m benchmarks gpu: failed parts: {part}"
        return report_of(tmp_path, part)

    return run


@pytest.mark.long
def test_part_that_hangs_is_stopped(run_part):
    report = run_part("hanging", 20.0)  # enough to start the row on a machine under load
    assert report["error"] == "the time limit of 20 s was reached"
    assert report["rows"] == [{"label": "hang", "error": "the time limit of 20 s was reached"}]


@pytest.mark.long
def test_failures_of_rows_and_crashes_are_reported(run_part, tmp_path, capsys):
    report = run_part("crashing", 600.0)
    assert report["error"] == "the process ended with status -9"
    outcomes = {row["label"]: row for row in report["rows"]}
    assert outcomes["measured"] == {
        "label": "measured",
        "figures": {"speed": 1.25},
        "cells": {"speed": "1.2"},
        "error": None,
    }
    assert outcomes["out of memory"]["error"] == "RuntimeError: out of memory"
    assert "illegal memory access" in outcomes["kernel"]["error"]
    assert outcomes["crash"]["error"] == "the process ended with status -9"
    assert "Traceback" in (tmp_path / "crashing.log").read_text()
    assert "crashing.log" in capsys.readouterr().out
    page = (tmp_path / "report.md").read_text()
    for line in (
        "| measured | 1.2 |",
        "| inexact | 2.0 **failed:** difference must be at most 1, got 2. |",
        "| not installed | no kernel |",
        "| out of memory | **failed:** RuntimeError: out of memory |",
        "| kernel | **failed:** AcceleratorError: CUDA error: an illegal memory access was encountered |",
        "| new process | 0.0 |",
        "| crash | **failed:** the process ended with status -9 |",
        "| measured after it | 2.5 |",
        "**Failed: the process ended with status -9.**",
    ):
        assert line in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--smoke", "--parts", "train", "speed"],
            "--parts must be among first, graphs, train, tests, checks, generate, .*, got speed.",
        ),
        ([], "a GPU must be available to torch, got none. --smoke tests the code on a CPU."),
        (["--smoke", "--output", "FILE/folder"], "--output must be a writable folder, got .*/folder: Not a directory."),
    ],
    ids=["unknown part", "no GPU", "output"],
)
def test_invalid_arguments_are_one_line_errors(arguments, message, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(SystemExit, match=f"^python -m benchmarks gpu: error: {message}$"):
        main(["gpu", "--output", str(tmp_path), *(word.replace("FILE", str(file)) for word in arguments)])
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("overrides", [{}, {"d_k": 4, "d_v": 12, "encoder_layers": 1}], ids=["default", "other widths"])
def test_formula_counts_the_flops_of_a_training_step(overrides):
    model = tiny_model(vocab_size=10_000, attn_implementation="eager", **overrides).train()
    batch = random_batch(np.array([[8, 16]] * 3))
    with FlopCounterMode(display=False) as counter:
        model(**batch).loss.backward()
    assert training_flops(model.config, 3, 8, 16) == counter.get_total_flops()


def test_recipe_has_batches_of_the_paper():
    lengths = sentence_lengths(200_000)
    assert lengths.mean() == pytest.approx(29, abs=1)
    batches = recipe_batches(Settings(sentence_pairs=20_000, recipe_batches=8))
    tokens = [batch["input_ids"].numel() + batch["labels"].numel() for batch in batches]
    assert max(tokens) <= 50_000
    assert np.median(tokens) > 0.95 * 50_000


@pytest.mark.parametrize("difference", [2e-3, math.nan])
def test_difference_above_the_tolerance_is_an_error(difference):
    assert checked({}, difference, 1e-3)["error"] == f"difference must be at most 0.001, got {difference:.2g}."
    assert "error" not in checked({}, 1e-3, 1e-3)
