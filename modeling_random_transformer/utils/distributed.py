"""Helpers for distributed processes, started by `accelerate launch` or `torchrun`."""

from collections.abc import Callable
from typing import Any


def call_on_main_process(function: Callable[[], Any]) -> Any:
    """Call a function in the first process, and return its result, or raise its error, in every process."""
    # Imported here, because translating texts does not require accelerate.
    from accelerate import PartialState
    from accelerate.utils import broadcast_object_list

    outcome: list[Any] = [None]
    if PartialState().is_main_process:
        try:
            outcome = [function()]
        except (ValueError, OSError) as error:
            outcome = [error]
    [result] = broadcast_object_list(outcome)
    if isinstance(result, Exception):
        raise result
    return result
