"""Tokens as readable text."""

from typing import Any

from torch import Tensor


def token_texts(tokenizer: Any, ids: Tensor) -> list[str]:
    """The text of each token in `ids` `[length]` with visible spaces; part of a multi-byte character becomes `�`."""
    return [tokenizer.decode([token]).replace(" ", "␣").replace("\n", "⏎") or "∅" for token in ids.tolist()]


def cross_attention_labels(tokenizer: Any, source: Tensor, target: Tensor) -> tuple[list[str], list[str]]:
    """Labels of the rows and columns of cross-attention weights: target tokens and source tokens.

    A row is that of the token which its logits predict. The token at its position of the decoder's input is the
    previous one.

    Args:
        tokenizer: the model's tokenizer.
        source: source ids, `[source_len]`.
        target: target ids with the start token, `[target_len + 1]`. All but the last are the decoder's input.
    """
    return token_texts(tokenizer, target[1:]), token_texts(tokenizer, source)
