"""Loads the tokenizer of a run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer, PreTrainedTokenizerBase

from ..base import load_extra
from ..base.errors import reraise_as_value_error
from ..tokenization_random_transformer import added_tokens


def load_tokenizer(name: str, special_tokens: Sequence[str] = ()) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a folder or of the Hub, or import a SentencePiece model.

    Args:
        name: the folder, the name on the Hub or the SentencePiece model.
        special_tokens: special tokens to add if the tokenizer does not have them.

    Raises:
        ValueError: the SentencePiece model cannot be imported, or a special token is invalid.
    """
    if Path(name).suffix in (".model", ".spm"):
        tokenizer = load_extra("sentencepiece").from_sentencepiece(name)
    else:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    new = [token for token in added_tokens((), special_tokens) if str(token) not in tokenizer.all_special_tokens]
    if new:
        tokenizer.add_special_tokens({"extra_special_tokens": new}, replace_extra_special_tokens=False)
    return tokenizer


def load_parent_tokenizer(argument: str, parent: str) -> PreTrainedTokenizerBase:
    """The tokenizer of a parent model. A `ValueError` names the argument if there is none."""
    with reraise_as_value_error(f"{argument} must be a saved model with its tokenizer, got {parent!r}"):
        return load_tokenizer(parent)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """The ids of special tokens in the configuration of a new model."""
    # A target starts with the padding token if the tokenizer has no start token, as in Marian and T5.
    start = tokenizer.pad_token_id if tokenizer.bos_token_id is None else tokenizer.bos_token_id
    return {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": start,
    }
