"""Modules that several parts of the package share. They depend on the files of the model only."""

from importlib import import_module
from typing import Any

DTYPES = ("float32", "bfloat16", "int8")  # dtypes in which models translate
# Engines that compute `generate()` → the module in `extras` with the engine's function `attach`.
ENGINES = {"ctranslate2": "export.ctranslate2_engine"}


def load_extra(name: str) -> Any:
    """Import a folder or a module of `extras` by its name, such as `"wrappers"`, when an option needs it."""
    return import_module(f"modeling_random_transformer.extras.{name}")
