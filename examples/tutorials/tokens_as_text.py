"""Tokens to be looked at."""

from typing import Any

from torch import Tensor


def tokens_of(tokenizer: Any, ids: Tensor) -> list[str]:
    """Each token of `[length]` as text, its spaces made visible; part of a character shows as `�`."""
    return [tokenizer.decode([token]).replace(" ", "␣").replace("\n", "⏎") or "∅" for token in ids.tolist()]
