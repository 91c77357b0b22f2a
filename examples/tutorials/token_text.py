"""Tokens as readable text."""

from typing import Any

from torch import Tensor


def token_texts(tokenizer: Any, ids: Tensor) -> list[str]:
    """The text of each token in `ids` `[length]` with visible spaces; part of a multi-byte character becomes `�`."""
    return [tokenizer.decode([token]).replace(" ", "␣").replace("\n", "⏎") or "∅" for token in ids.tolist()]
