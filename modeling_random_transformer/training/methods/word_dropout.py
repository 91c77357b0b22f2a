"""Word dropout: random tokens of the source and of the decoder's input become `<unk>`."""

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase


class WordDropout:
    """Replaces tokens by the unknown token, independently and with equal probability.

    The targets of the loss do not change. Bowman et al. 2016 (https://arxiv.org/abs/1511.06349) replace inputs of the
    decoder in this way; Sennrich and Zhang 2019 (https://arxiv.org/abs/1905.11901) drop words on both sides of small
    parallel corpora. Special tokens, such as `</s>` and language tags, are never replaced.

    Args:
        tokenizer: the tokenizer, with an unknown token.
        rate: probability to replace a token, in [0, 1).
        device: device of the token ids.

    Raises:
        ValueError: the tokenizer has no unknown token.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase | None, rate: float, device: torch.device):
        if tokenizer is None or tokenizer.unk_token_id is None:
            raise ValueError(f"word_dropout must be 0 without a tokenizer with unk_token, got {rate}.")
        self.unknown, self.rate = tokenizer.unk_token_id, rate
        self.kept = torch.tensor(sorted(tokenizer.added_tokens_decoder), device=device)

    def __call__(self, ids: Tensor) -> Tensor:
        """Token ids `[batch, length]` with replacements, by the random numbers of PyTorch on their device."""
        dropped = torch.rand(ids.shape, device=ids.device) < self.rate
        return ids.masked_fill(dropped & ~torch.isin(ids, self.kept), self.unknown)
