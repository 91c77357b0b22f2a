"""A model that starts from a parent with another vocabulary (Zoph et al. 2016, https://aclanthology.org/D16-1163).

All weights but those of the vocabulary are the parent's. A token starts with the mean of the parent's weights for its
pieces, the tokens that the parent's tokenizer splits it into. A token of both vocabularies has one piece, itself.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ..inputs_random_transformer import LanguageTags, tokenizer_languages
from ..modeling_random_transformer import RandomTransformerForConditionalGeneration

# The ends of the names of weights with a row for each token.
OF_TOKENS = ("shared.weight", "embed_tokens.weight", "lm_head.weight", "lm_head.bias")
ROLES = ("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id")


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The ids of special tokens in the configuration of a new model."""
    ids = {name: getattr(tokenizer, name) for name in ("pad_token_id", "bos_token_id", "eos_token_id")}
    # A target starts with the padding token if the tokenizer has no start token, as in Marian and T5.
    start = ids["pad_token_id"] if ids["bos_token_id"] is None else ids["bos_token_id"]
    return {**ids, "decoder_start_token_id": start}


def with_vocabulary(
    parent: RandomTransformerForConditionalGeneration,
    parent_tokenizer: PreTrainedTokenizerBase,
    tokenizer: PreTrainedTokenizerBase,
) -> RandomTransformerForConditionalGeneration:
    """A new model with the weights of a parent, for another tokenizer."""
    config = parent.config.copy_with(vocab_size=len(tokenizer), **special_ids(tokenizer))
    pieces = pieces_of_tokens(parent_tokenizer, tokenizer)
    start: Any = config.decoder_start_token_id
    pieces[start] = [int(parent.config.decoder_start_token_id)]  # type: ignore[arg-type]
    weights = parent.state_dict()
    for name in (name for name in weights if name.endswith(OF_TOKENS)):
        weights[name] = mean_rows(weights[name], pieces)
    child = RandomTransformerForConditionalGeneration(config)
    child.load_state_dict(weights)
    return child


def pieces_of_tokens(
    parent_tokenizer: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase
) -> list[Sequence[int]]:
    """For each token, the parent's ids of its pieces, or none if the parent's tokenizer has no known piece of it.

    Special tokens correspond by their role, such as the end of a text, or by their name, such as language tags.
    """
    known, tokens = parent_tokenizer.get_vocab(), tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    texts = [text_of_token(tokenizer, index, token) for index, token in enumerate(tokens)]
    special = {parent_tokenizer.unk_token_id, *parent_tokenizer.all_special_ids}
    with LanguageTags(next(iter(tokenizer_languages(parent_tokenizer)), None)).set(parent_tokenizer):
        split = parent_tokenizer(texts, add_special_tokens=False)["input_ids"]
    pieces: list[Sequence[int]] = []
    for index, (token, ids) in enumerate(zip(tokens, split, strict=True)):
        if index in tokenizer.added_tokens_decoder or not texts[index]:  # without a text, such as a part of a character
            pieces.append([known[token]] if token in known else [])
        else:
            pieces.append([piece for piece in ids if piece not in special])
    for role in ROLES:
        if None not in (own := getattr(tokenizer, role), getattr(parent_tokenizer, role)):
            pieces[own] = [getattr(parent_tokenizer, role)]
    return pieces


def text_of_token(tokenizer: PreTrainedTokenizerBase, index: int, token: str) -> str:
    """The text of a token, with the space before a word; `""` if it is not text, such as a part of a character."""
    if index in tokenizer.added_tokens_decoder:
        return ""
    text = tokenizer.decode([index])
    if token.startswith("▁") and not text.startswith(" "):  # decoders of SentencePiece remove the first space
        text = f" {text}"
    return "" if "\ufffd" in text else text


def mean_rows(weight: Tensor, pieces: Sequence[Sequence[int]]) -> Tensor:
    """The rows of new tokens, `[tokens, …]`, as means of the rows of their pieces in `[parent's tokens, …]`.

    A mean of vectors gets the mean length of the vectors. A token without pieces has the mean of all finite rows.
    """
    rows = weight.new_empty((len(pieces), *weight.shape[1:]))
    finite = weight[weight.isfinite().view(len(weight), -1).all(dim=1)]
    for index, ids in enumerate(pieces):
        chosen = weight[list(ids)] if ids else finite
        rows[index] = chosen.mean(dim=0)
        if weight.dim() > 1 and len(ids) > 1:
            rows[index] *= chosen.norm(dim=1).mean() / rows[index].norm().clamp_min(torch.finfo(weight.dtype).tiny)
    return rows
