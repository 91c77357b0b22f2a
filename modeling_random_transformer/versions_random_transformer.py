"""Adapters for the differences between the supported versions of transformers.

transformers 5.24 renamed the KV cache from `past_key_values` to `cache`: in arguments, in outputs and in the keyword
arguments of `generate()`. This project uses `cache`. The functions below translate where transformers is called.
"""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import wraps
from typing import Any

import torch
import transformers
from transformers import logging
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import Seq2SeqLMOutput
from transformers.utils.deprecation import deprecate_kwarg

OLDEST_TESTED, NEWEST_TESTED = (5, 17), (5, 24)  # minor versions of transformers
TESTED_VERSIONS = "{}.{} to {}.{}".format(*OLDEST_TESTED, *NEWEST_TESTED)
UNTESTED_ADVICE = (
    f"transformers {transformers.__version__} is installed, and random-transformer was tested with {TESTED_VERSIONS}: "
    "install one of these."
)

OLD_CACHE_NAME = "past_key_values"
CACHE_NAMES = [field.name for field in fields(Seq2SeqLMOutput) if field.name in ("cache", OLD_CACHE_NAME)]
if not CACHE_NAMES:
    raise ImportError(f"the outputs of transformers have no cache. {UNTESTED_ADVICE}")
CACHE_NAME = CACHE_NAMES[0]
# The version in which transformers' own models reject the old name. "0" disables the warning while it is current.
WARN_BEFORE = "0" if CACHE_NAME == OLD_CACHE_NAME else "5.40.0"

logger = logging.get_logger(__name__)


def named_cache(cache: Any) -> dict[str, Any]:
    """The cache as a keyword argument of transformers' functions, outputs and `generate()`."""
    return {CACHE_NAME: cache}


def cache_of(outputs: Mapping[str, Any]) -> Any:
    """The cache among outputs of a model or keyword arguments of `generate()`; `None` if there is none."""
    return outputs.get(CACHE_NAME)


def accepts_cache(function: Callable[..., Any]) -> Callable[..., Any]:
    """Let a function with the argument `cache` accept both names. Its signature has the current name.

    `generate()` reads the signature to validate its arguments. The old name gives transformers' own FutureWarning from
    version 5.24.

    Raises:
        ValueError: a call has both names. transformers would ignore the old one, with which a library passes its cache.
    """
    translate = deprecate_kwarg(OLD_CACHE_NAME, version=WARN_BEFORE, new_name="cache")(function)

    @wraps(function)
    def accepting(*args: Any, **kwargs: Any) -> Any:
        if {"cache", OLD_CACHE_NAME} <= kwargs.keys():
            raise ValueError(f"one of cache and {OLD_CACHE_NAME} must be given, got both.")
        return translate(*args, **kwargs)

    signature = inspect.signature(function)
    parameters = [
        parameter.replace(name=CACHE_NAME) if parameter.name == "cache" else parameter
        for parameter in signature.parameters.values()
    ]
    accepting.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    return accepting


class CheckpointedLayer(GradientCheckpointingLayer):
    """A layer with gradient checkpointing in training. Without gradients, as in `generate()`, it keeps its cache.

    transformers before 5.24 removes the cache from every call in training mode.
    """

    is_checkpointed = False  # `gradient_checkpointing_enable()` sets the same value

    @property
    def gradient_checkpointing(self) -> bool:
        return self.is_checkpointed and torch.is_grad_enabled()

    @gradient_checkpointing.setter
    def gradient_checkpointing(self, value: bool) -> None:
        self.is_checkpointed = value


def is_untested_version() -> bool:
    """Whether the installed minor version of transformers is newer or older than the tested ones."""
    installed = tuple(int(number) for number in transformers.__version__.split(".")[:2])
    return not OLDEST_TESTED <= installed <= NEWEST_TESTED


if is_untested_version():
    logger.warning_once(UNTESTED_ADVICE)
