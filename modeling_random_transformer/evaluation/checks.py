"""Refusals of wrong texts and options: each message names the argument, its value and what is allowed."""

import math
from collections.abc import Iterable
from typing import Any


def check_texts(predictions: Any, references: Any) -> tuple[list[str], list[list[str]]]:
    """The predictions, and for each of them its references: at least one.

    Raises:
        ValueError: they are something else, there are none, or their numbers differ.
    """
    predictions, references = _as_list("predictions", predictions), _as_list("references", references)
    if len(predictions) != len(references):
        raise ValueError(
            "references must be as many as predictions (several of one prediction make one list), "
            f"got {len(predictions)} predictions and {len(references)} references."
        )
    if not predictions:
        raise ValueError("predictions must hold at least one text, got none.")
    for index, text in enumerate(predictions):
        _check_text(f"predictions[{index}]", text)
    return predictions, [_references_of_one(f"references[{index}]", texts) for index, texts in enumerate(references)]


def _references_of_one(name: str, texts: Any) -> list[str]:
    texts = [texts] if isinstance(texts, str) else _as_list(name, texts)
    if not texts:
        raise ValueError(f"{name} must hold at least one text, got none.")
    for number, text in enumerate(texts):
        _check_text(f"{name}[{number}]", text)
    return texts


def _as_list(name: str, texts: Any) -> list[Any]:
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise ValueError(f"{name} must be a list of strings, got {texts!r}.")
    return list(texts)


def _check_text(name: str, text: Any) -> None:
    if not isinstance(text, str):
        raise ValueError(f"{name} must be a string, got {text!r}.")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # half a surrogate pair, which no file can hold
        raise ValueError(f"{name} must be Unicode text, got {text!r}.") from error


def check_names(name: str, values: Iterable[str], allowed: Iterable[str]) -> None:
    """Every one of `values` is among the `allowed`."""
    for value in values:
        check_choice(name, value, allowed)


def check_choice(name: str, value: Any, allowed: Iterable[str]) -> None:
    """`value` is among the `allowed`."""
    if value not in list(allowed):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}, got {value!r}.")


def check_flag(name: str, value: Any) -> None:
    """`value` is a truth value, not a string or number that would pass for one."""
    if not isinstance(value, bool):
        raise ValueError(f"{name} must be True or False, got {value!r}.")


def check_order(name: str, value: Any, least: int) -> None:
    """`value` is an integer of at least `least`."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} must be an integer of at least {least}, got {value!r}.")


def check_smooth_value(value: Any, smooth_method: str, methods: Iterable[str]) -> None:
    """`value` is `None`, or a positive number where the method, one of `methods`, uses it."""
    if value is None:
        return
    if smooth_method not in methods:
        raise ValueError(
            f"smooth_value must be None unless smooth_method is one of {', '.join(map(repr, methods))}, "
            f"got {value!r} with smooth_method {smooth_method!r}."
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ValueError(f"smooth_value must be None or a positive number, got {value!r}.")
