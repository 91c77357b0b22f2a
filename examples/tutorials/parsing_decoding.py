"""Decoding that is constrained to well-formed trees over exactly the words of the input."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from .parsing_trees import TERMINAL


def max_constituents(num_words: int) -> int:
    """The limit of the number of constituents of a tree. Treebanks have about one constituent per word."""
    return 2 * num_words + 2


def max_target_length(num_words: int) -> int:
    """The number of tokens of the longest tree, with its end-of-sequence token."""
    return num_words + 2 * max_constituents(num_words) + 1


class TreeLogitsProcessor(LogitsProcessor):
    """Allows only the tokens with which an output becomes a well-formed tree over exactly the words of its source.

    - The first token opens the root; after its closing bracket, only the end-of-sequence token is allowed.
    - Each constituent has at least one word, and its closing bracket has its label.
    - The root closes after the last word; no other token opens a constituent after it.
    - The number of constituents is at most `max_constituents`, so that the output ends.

    A row is not affected by the other rows of the batch. The state of a row is computed from its tokens, in any order
    of the beams.
    """

    def __init__(self, tokenizer: Any, num_words: Sequence[int]):
        """
        Args:
            tokenizer: of the model; its added tokens are the brackets and `XX`.
            num_words: number of words of each source, in the order of the batch.

        Raises:
            ValueError: a source has no words.
        """
        if min(num_words, default=0) < 1:
            raise ValueError(f"num_words must be positive integers, got {list(num_words)}.")
        vocabulary = tokenizer.get_added_vocab()
        self.num_words = torch.tensor(num_words)  # [batch]
        self.limits = torch.tensor([max_constituents(number) for number in num_words])  # [batch]
        self.terminal, self.end = vocabulary[TERMINAL], tokenizer.eos_token_id
        self.closing_of = torch.full([len(tokenizer)], -1)  # [vocab_size]; -1 for tokens that are no opening brackets
        for token, index in vocabulary.items():
            if token.startswith("("):
                self.closing_of[index] = vocabulary[f"){token[1:]}"]
        self.is_opening = self.closing_of >= 0  # [vocab_size]
        self.is_closing = torch.zeros_like(self.is_opening)
        self.is_closing[self.closing_of[self.is_opening]] = True

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """
        Args:
            input_ids: the start token and the tokens so far. `[batch * copies, length]`
            scores: `[batch * copies, vocab_size]`; copies are beams or returned sequences.
        """
        return scores.masked_fill(~self.allowed(input_ids.cpu()).to(scores.device), -torch.inf)

    def allowed(self, input_ids: Tensor) -> Tensor:
        """Which tokens may follow. Each row has at least one. `[batch * copies, vocab_size]`"""
        copies = len(input_ids) // len(self.num_words)
        opening, closing = self.is_opening[input_ids], self.is_closing[input_ids]
        depths = (opening.int() - closing.int()).cumsum(dim=1)  # after each token
        depth, opened = depths[:, -1], opening.sum(dim=1)
        remaining = self.num_words.repeat_interleave(copies) - (input_ids == self.terminal).sum(dim=1)
        below_limit = opened < self.limits.repeat_interleave(copies)

        may_add_word = (depth > 0) & (remaining > 0)
        may_open = (may_add_word & below_limit) | (opened == 0)
        may_close = (depth > 0) & ~opening[:, -1] & ((depth > 1) | (remaining == 0))
        # The innermost open constituent: the last one to reach the current depth.
        innermost = (opening & (depths == depth[:, None])).int().cumsum(dim=1).argmax(dim=1)
        label = self.closing_of[input_ids.gather(1, innermost[:, None])]  # [batch * copies, 1]

        allowed = may_open[:, None] & self.is_opening
        allowed |= may_close[:, None] & (torch.arange(len(self.is_opening)) == label)
        allowed[:, self.terminal] = may_add_word
        allowed[:, self.end] = ~(may_open | may_close | may_add_word)
        return allowed
