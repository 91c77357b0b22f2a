"""The values of a recipe that depend on the device."""

import multiprocessing

import pytest
import torch

from modeling_random_transformer.extras.recipes import device_choices
from modeling_random_transformer.extras.recipes.device_choices import choose_by_device, choose_engine, choose_precision
from tests.helpers.training import flags, parse_command, write_corpus


@pytest.mark.parametrize(
    ("capability", "gpu", "overrides", "expected"),
    [
        ("avx512_bf16", None, {}, {"bf16": True, "use_cpu": True}),
        ("bf16", None, {}, {"bf16": True, "use_cpu": True}),
        (None, None, {}, {"bf16": False, "use_cpu": True}),
        (None, True, {}, {"bf16": True, "use_cpu": False}),
        ("amx_bf16", False, {}, {"bf16": False, "use_cpu": False}),
        (None, True, {"use_cpu": True}, {"bf16": False, "use_cpu": True}),
    ],
)
def test_bfloat16_is_chosen_by_the_instructions_of_the_device(
    capability, gpu, overrides, expected, monkeypatch, caplog
):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: gpu)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx2": True, str(capability): True})
    assert choose_precision({"bf16": "auto", **overrides}) == expected
    has = "has" if expected["bf16"] else "has no"
    assert caplog.messages == [f"bf16 is {expected['bf16']}: the device {has} bfloat16 instructions."]


@pytest.mark.skipif(torch.accelerator.is_available(), reason="only a machine without an accelerator requires use_cpu")
def test_bfloat16_on_a_cpu_needs_no_other_argument(tmp_path, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_bf16": True})
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text("bf16: auto")
    _, _, args, _ = parse_command([str(tmp_path / "recipe.yaml"), *flags(tmp_path, "out", use_cpu=None)])
    assert args.bf16
    assert args.device.type == "cpu"


@pytest.mark.parametrize(("accelerator", "installed", "engine"), [(0, 1, "ctranslate2"), (0, 0, None), (1, 1, None)])
def test_an_installed_engine_is_chosen_on_a_cpu(accelerator, installed, engine, monkeypatch):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: bool(accelerator))
    monkeypatch.setattr(device_choices, "find_spec", lambda _: installed or None)
    assert choose_engine({"engine": "auto"}) == {"engine": engine}


WITH_GRAPHS = {"cuda_graphs": True, "dataloader_num_workers": 1, "dataloader_persistent_workers": True}


@pytest.mark.parametrize(
    ("gpu", "processes", "start_method", "values", "overrides", "expected"),
    [
        (True, "1", "fork", {}, {}, WITH_GRAPHS),
        (True, None, "fork", {}, {}, WITH_GRAPHS),
        (True, None, "forkserver", {}, {}, {"cuda_graphs": True}),
        (True, None, "fork", {"dataloader_num_workers": 4}, {}, WITH_GRAPHS | {"dataloader_num_workers": 4}),
        (True, "2", "fork", {}, {}, {"cuda_graphs": False}),
        (True, None, "fork", {}, {"fp16": True}, {"cuda_graphs": False}),
        (True, None, "fork", {"torch_compile": True}, {}, {"cuda_graphs": False, "torch_compile": True}),
        (True, None, "fork", {"use_cpu": True}, {}, {"cuda_graphs": False, "use_cpu": True}),
        (True, None, "fork", {"use_cpu": True}, {"use_cpu": False}, WITH_GRAPHS | {"use_cpu": True}),
        (False, None, "fork", {}, {}, {"cuda_graphs": False}),
    ],
)
def test_graphs_are_chosen_on_one_gpu(gpu, processes, start_method, values, overrides, expected, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: gpu)
    monkeypatch.setattr(multiprocessing, "get_all_start_methods", lambda: [start_method, "spawn"])
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    if processes is not None:
        monkeypatch.setenv("WORLD_SIZE", processes)
    assert choose_by_device({"cuda_graphs": "auto"} | values, overrides) == expected
