"""Selects the values of `auto` in a recipe that depend on the device."""

import logging
import multiprocessing
import os
from importlib.util import find_spec
from typing import Any

import torch

from ...base import ENGINES
from ...training.training_arguments import AUTO, UNCAPTURED

logger = logging.getLogger(__name__)

Values = dict[str, Any]  # arguments by name

# CPU capabilities, as PyTorch names them, with which bfloat16 is faster than float32
BFLOAT16 = ("avx512_bf16", "amx_bf16", "bf16", "sve_bf16")


def choose_by_device(arguments: Values, overrides: Values) -> Values:
    """Replace the values that are `auto`.

    Args:
        arguments: those of a recipe.
        overrides: arguments that override them.
    """
    chosen = dict(arguments)
    effective = {**arguments, **overrides}
    for name, choose in CHOICES.items():
        if chosen.get(name) == AUTO:
            chosen |= choose(effective)
    return chosen


def choose_precision(arguments: Values) -> Values:
    """Whether the device computes in bfloat16.

    transformers requires `use_cpu` with it on a machine without an accelerator.
    """
    uses_cpu = is_on_cpu(arguments)
    is_supported = has_bfloat16(uses_cpu)
    if arguments["bf16"] == AUTO:  # otherwise, a call has another value
        number = "" if is_supported else "no "
        # A warning, so that the choice is shown by default.
        logger.warning("bf16 is %s: the device has %sbfloat16 instructions.", is_supported, number)
    return {"bf16": is_supported, "use_cpu": uses_cpu}


def choose_engine(arguments: Values) -> Values:
    """An engine that is installed, if the device is a CPU."""
    engine = None
    if is_on_cpu(arguments):
        installed = filter(find_spec, ENGINES)
        engine = next(installed, None)
    return {"engine": engine}


def choose_graphs(arguments: Values) -> Values:
    """Whether the passes can be captured: on one NVIDIA GPU.

    With graphs, the CPU has time to prepare the next batches only in another process, which is added if it can be
    forked: otherwise, it would run the user's script again.
    """
    is_excluded = any(arguments.get(name) for name in UNCAPTURED) or is_on_cpu(arguments)
    is_one_gpu = torch.cuda.is_available() and os.environ.get("WORLD_SIZE", "1") == "1"
    if is_excluded or not is_one_gpu:
        return {"cuda_graphs": False}
    start_methods = multiprocessing.get_all_start_methods()
    if start_methods[0] != "fork":  # the default
        return {"cuda_graphs": True}
    return {
        "cuda_graphs": True,
        "dataloader_num_workers": arguments.get("dataloader_num_workers", 1),
        "dataloader_persistent_workers": arguments.get("dataloader_persistent_workers", True),
    }


# Argument that may be `auto` → function that chooses its value
CHOICES = {"bf16": choose_precision, "engine": choose_engine, "cuda_graphs": choose_graphs}


def is_on_cpu(arguments: Values) -> bool:
    """Whether the arguments, or the machine, require training on a CPU."""
    return bool(arguments.get("use_cpu")) or not torch.accelerator.is_available()


def has_bfloat16(on_cpu: bool) -> bool:
    """Whether the CPU, or the accelerator, has instructions for bfloat16; emulation is slow."""
    if on_cpu:
        return any(torch.cpu.get_capabilities().get(name) for name in BFLOAT16)
    return not torch.cuda.is_available() or torch.cuda.is_bf16_supported(including_emulation=False)
