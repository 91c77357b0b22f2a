"""What options of the core import from the folders of `extras`, when they are set."""

from importlib import import_module
from typing import Any


def load_extra(name: str) -> Any:
    """Import a folder or a module of `extras` by its name, such as `"wrappers"`."""
    return import_module(f"modeling_random_transformer.extras.{name}")
