"""How the commands with a saved translation model start: processes, the model and its limits."""

import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from transformers.tokenization_utils_base import LARGE_INTEGER

from ..ops_random_transformer import supports_native_matmul
from ..utils.errors import first_line
from .ensemble import load_ensemble
from .weights import check_finite


def exit_with_launcher(polling_interval: float = 0.2) -> None:
    """Exit this process when its launcher has died. A launcher that is killed cannot stop its processes.

    Otherwise this process would write to the same files as the next run.
    """
    launchers = ({"TORCHELASTIC_RUN_ID"}, {"ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION"})  # set by launchers
    if not any(names <= set(os.environ) for names in launchers):
        return
    launcher = os.getppid()

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(polling_interval)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def start_processes(device: str | None) -> Any:
    """Accelerate's state of this process, on the device of `--device` or on an accelerator if there is one."""
    from accelerate import PartialState  # not required for translating texts
    from accelerate.utils import parse_flag_from_env

    on_cpu = device == "cpu" or parse_flag_from_env("ACCELERATE_USE_CPU")
    return PartialState(cpu=on_cpu or not torch.accelerator.is_available())


def load_models(
    folders: Sequence[Path], dtype: str, device: str | torch.device, argument: str, device_argument: str = "device"
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model of a folder, or the ensemble of several, onto a device, and its tokenizer.

    Args:
        folders: saved models with their tokenizers.
        dtype: see `load_translator`.
        device: the device.
        argument: name of the argument `folders` in error messages.
        device_argument: name of the argument `device` in error messages.

    Raises:
        ValueError: a folder cannot be loaded, the models cannot form an ensemble, or the device is not available.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # depends on torch's build
        raise ValueError(f"{device_argument} must be an available device, got {device}: {first_line(error)}") from error
    model, tokenizer = load_ensemble(folders, dtype, argument)
    return model.to(device), tokenizer


def load_checked(
    folders: Sequence[Path], dtype: str, device: str | torch.device
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model of `--model` with finite weights, and its tokenizer with a limit on the tokens of a source.

    Raises:
        ValueError: see `load_models`.
        FloatingPointError: a weight is not finite.
    """
    model, tokenizer = load_models(folders, dtype, device, argument="--model", device_argument="--device")
    if model.device.type == "cpu" and model.dtype == torch.bfloat16 and not supports_native_matmul(model.dtype):
        print("This CPU has no instructions for bfloat16: --dtype float32 or int8 is faster.", file=sys.stderr)
    check_finite(model)
    limit_sources(model, tokenizer)
    return model, tokenizer


def limit_sources(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> None:
    """Limit a tokenizer without a limit to the positions of the model, so that a line of a megabyte is an error."""
    positions = getattr(model.config, "max_position_embeddings", None)
    if positions is not None and tokenizer.model_max_length > LARGE_INTEGER:
        tokenizer.model_max_length = positions
