"""Initializes a model from a parent with another vocabulary.

All weights but those of the vocabulary are the parent's (Zoph et al. 2016, https://aclanthology.org/D16-1163). A token
starts with the mean of the parent's weights for its pieces, the tokens that the parent's tokenizer splits it into. A
token of both vocabularies has one piece, itself.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from ...inputs_random_transformer import encode_texts, tokenizer_languages
from ...modeling_random_transformer import RandomTransformerForConditionalGeneration
from ...training.tokenizer import special_ids

# The ends of the names of weights with a row for each token.
TOKEN_WEIGHTS = ("shared.weight", "embed_tokens.weight", "lm_head.weight", "lm_head.bias")
ROLES = ("pad_token_id", "bos_token_id", "eos_token_id", "unk_token_id")


def with_vocabulary(
    parent: RandomTransformerForConditionalGeneration,
    parent_tokenizer: PreTrainedTokenizerBase,
    tokenizer: PreTrainedTokenizerBase,
) -> RandomTransformerForConditionalGeneration:
    """A new model with the weights of a parent, for another tokenizer."""
    # A trained parent has `use_cache=False`, which would become the default of the child's generation config.
    config = parent.config.copy_with(vocab_size=len(tokenizer), use_cache=True, **special_ids(tokenizer))
    pieces = pieces_of_tokens(parent_tokenizer, tokenizer)
    start: Any = config.decoder_start_token_id
    pieces[start] = [int(parent.config.decoder_start_token_id)]  # type: ignore[arg-type]
    weights = parent.state_dict()
    for name, weight in weights.items():
        if name.endswith(TOKEN_WEIGHTS):
            weights[name] = mean_rows(weight, pieces)
    child = RandomTransformerForConditionalGeneration(config)
    child.load_state_dict(weights)
    return child


def pieces_of_tokens(
    parent_tokenizer: PreTrainedTokenizerBase, tokenizer: PreTrainedTokenizerBase
) -> list[Sequence[int]]:
    """For each token, the parent's ids of its pieces; empty if the parent's tokenizer knows no piece of it.

    A token of both vocabularies is its only piece, even if the parent's tokenizer would split its text. It has the same
    text, or, if it is not text, the same name. Special tokens correspond by their role, such as the end of a text, or
    by their name, such as language tags.
    """
    known = {token: index for index, token in enumerate(texts_of_tokens(parent_tokenizer))}
    tokens = texts_of_tokens(tokenizer)
    special = {parent_tokenizer.unk_token_id, *parent_tokenizer.all_special_ids}
    texts = [text for text, _ in tokens]
    language = next(iter(tokenizer_languages(parent_tokenizer)), None)
    split = encode_texts(parent_tokenizer, texts, src_lang=language, add_special_tokens=False)["input_ids"]
    pieces: list[Sequence[int]] = []
    for token, ids in zip(tokens, split, strict=True):
        pieces.append([known[token]] if token in known else [piece for piece in ids if piece not in special])
    for role in ROLES:
        token_id = getattr(tokenizer, role)
        parent_id = getattr(parent_tokenizer, role)
        if token_id is not None and parent_id is not None:
            pieces[token_id] = [parent_id]
    return pieces


def texts_of_tokens(tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, str]]:
    """For each token, its text (see `text_of_token`), or its name if it is not text."""
    texts = []
    for index, name in enumerate(tokenizer.convert_ids_to_tokens(range(len(tokenizer)))):
        text = text_of_token(tokenizer, index, name)
        texts.append((text, "") if text else ("", name))
    return texts


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

    A mean of vectors is scaled to the mean length of the vectors. A token without pieces gets the mean of all finite
    rows.
    """
    finite = weight[weight.isfinite().view(len(weight), -1).all(dim=1)]
    smallest = torch.finfo(weight.dtype).tiny
    rows = []
    for ids in pieces:
        chosen = weight[list(ids)] if ids else finite
        mean = chosen.mean(dim=0)
        if weight.dim() > 1 and len(ids) > 1:
            mean *= chosen.norm(dim=1).mean() / mean.norm().clamp_min(smallest)
        rows.append(mean)
    return torch.stack(rows)
