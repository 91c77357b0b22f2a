"""Decoding that is constrained to well-formed trees over exactly the words of the input."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

WordTokens = Sequence[Sequence[int]]  # token ids of each word of a sentence


def max_constituents(num_words: int) -> int:
    """The limit of the number of constituents of a tree. Treebanks have about one constituent per word."""
    return 2 * num_words + 2


def max_target_length(words: WordTokens) -> int:
    """The number of tokens of the longest tree, with its end-of-sequence token."""
    return sum(map(len, words)) + 2 * max_constituents(len(words)) + 1


class TreeLogitsProcessor(LogitsProcessor):
    """Allows only the tokens with which an output becomes a well-formed tree over exactly the words of its source.

    - The first token opens the root; after its closing bracket, only the end-of-sequence token is allowed.
    - The words are those of the source, in its order. No bracket splits the tokens of a word.
    - Each constituent has at least one word, and its closing bracket has its label.
    - The root has all words.
    - The number of constituents is at most `max_constituents`, so that the output ends.

    The next word of the source has the probability of all words together: the model decides whether a word or a bracket
    follows. Otherwise, a model that predicts another word would open constituents without end, because only
    brackets remain with a probability.

    A row is not affected by the other rows of the batch. The state of a row is computed from its tokens, so it does not
    depend on the order of the beams.
    """

    def __init__(self, tokenizer: Any, sentences: Sequence[WordTokens]):
        """
        Args:
            tokenizer: of the model; its added tokens are the special tokens and the brackets.
            sentences: the token ids of the words of each source, in the order of the batch.

        Raises:
            ValueError: a sentence has no words, or a word has no tokens.
        """
        if not all(words and all(words) for words in sentences):
            raise ValueError(f"sentences must have words with tokens, got {[list(map(list, s)) for s in sentences]}.")
        vocabulary = tokenizer.get_added_vocab()
        self.end = tokenizer.eos_token_id
        self.limits = torch.tensor([max_constituents(len(words)) for words in sentences])  # [batch]
        self.lengths = torch.tensor([sum(map(len, words)) for words in sentences])  # [batch]
        shape = len(sentences), int(self.lengths.max()) + 1
        self.tokens = torch.zeros(shape, dtype=torch.long)  # [batch, source_len + 1]
        self.is_start = torch.ones(shape, dtype=torch.bool)  # whether a token begins a word or ends the sentence
        for row, words in enumerate(sentences):
            self.tokens[row, : self.lengths[row]] = torch.tensor([token for word in words for token in word])
            starts = torch.tensor([index == 0 for word in words for index in range(len(word))])
            self.is_start[row, : self.lengths[row]] = starts
        self.closing_of = torch.full([len(tokenizer)], -1)  # [vocab_size]; -1 for tokens that are no opening brackets
        for token, index in vocabulary.items():
            if token.startswith("("):
                self.closing_of[index] = vocabulary[f"){token[1:]}"]
        self.is_opening = self.closing_of >= 0  # [vocab_size]
        self.is_closing = torch.zeros_like(self.is_opening)
        self.is_closing[self.closing_of[self.is_opening]] = True
        self.is_word = torch.ones_like(self.is_opening)
        self.is_word[list(vocabulary.values())] = False

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """
        Args:
            input_ids: the start token and the tokens so far. `[batch * copies, length]`
            scores: logits or log-probabilities, `[batch * copies, vocab_size]`; copies are beams or returned sequences.
        """
        may_follow, is_word = self.next_tokens(input_ids.cpu()).to(scores.device), self.is_word.to(scores.device)
        words = scores.masked_fill(~is_word, -torch.inf).logsumexp(dim=1, keepdim=True)
        return torch.where(is_word, words, scores).masked_fill(~may_follow, -torch.inf)

    def next_tokens(self, input_ids: Tensor) -> Tensor:
        """Which tokens may follow. Each row has at least one. `[batch * copies, vocab_size]`"""
        rows = torch.arange(len(input_ids)) // (len(input_ids) // len(self.lengths))  # index of each row's source
        opening, closing = self.is_opening[input_ids], self.is_closing[input_ids]
        depths = (opening.int() - closing.int()).cumsum(dim=1)  # depth after each token
        depth, opened = depths[:, -1], opening.sum(dim=1)
        # Beams with the score minus infinity may have more tokens than their source.
        position = self.is_word[input_ids].sum(dim=1).minimum(self.lengths[rows])
        between_words, remaining = self.is_start[rows, position], position < self.lengths[rows]

        may_add_word = (depth > 0) & remaining
        may_open = (may_add_word & between_words & (opened < self.limits[rows])) | (opened == 0)
        may_close = (depth > 0) & between_words & ~opening[:, -1] & ((depth > 1) | ~remaining)
        # The innermost open constituent is the last one that begins at the current depth.
        innermost = (opening & (depths == depth[:, None])).int().cumsum(dim=1).argmax(dim=1, keepdim=True)
        label = self.closing_of[input_ids.gather(1, innermost)]  # [batch * copies, 1]

        ids = torch.arange(len(self.is_opening))
        may_follow = may_open[:, None] & self.is_opening
        may_follow |= may_close[:, None] & (ids == label)
        may_follow |= may_add_word[:, None] & (ids == self.tokens[rows, position][:, None])
        may_follow[:, self.end] = ~may_follow.any(dim=1)
        return may_follow
