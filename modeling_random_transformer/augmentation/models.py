"""Loading of the model or the ensemble that translates."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..loading import load_translator
from ..utils.errors import first_line


def load_models(
    folders: Sequence[Path], dtype: str, device: str | torch.device, argument: str
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load the model of a folder, or the ensemble of several, onto a device, and its tokenizer.

    Args:
        folders: saved models with their tokenizers.
        dtype: see `load_translator`.
        device: the device.
        argument: name of the argument in error messages.

    Raises:
        ValueError: a folder cannot be loaded, the models cannot form an ensemble, or the device is not available.
    """
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # depends on torch's build
        raise ValueError(f"device must be an available device, got {device}: {first_line(error)}") from error
    if len(folders) == 1:
        model, tokenizer = load_translator(folders[0], dtype, argument)
    else:
        from ..ensemble import load_ensemble

        model, tokenizer = load_ensemble(folders, dtype, argument)
    return model.to(device), tokenizer
