"""The vocabulary of a tokenizer, and checks that it matches that of a model."""

from transformers import PreTrainedTokenizerBase

from ..configuration_random_transformer import RandomTransformerConfig
from ..inputs_random_transformer import encode_texts, tokenizer_languages

# Toolkits pad the embedding to a multiple of 8, 64 or 128 rows; a larger difference means another vocabulary.
ROUNDED_TO = 128


def fits_embedding(tokens: int, rows: int) -> bool:
    """Whether an embedding with this number of rows can belong to a vocabulary with this number of tokens."""
    return tokens <= rows <= -(-tokens // ROUNDED_TO) * ROUNDED_TO


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, config: RandomTransformerConfig) -> None:
    """Check that the tokenizer has the vocabulary of the model.

    Raises:
        ValueError: the tokenizer has more tokens than the model, or far fewer. With separate embeddings for source and
            target (`share_embeddings=False`), any smaller number is allowed.
    """
    tokens = len(tokenizer)
    rows = config.vocab_size
    if tokens > rows or (config.share_embeddings and not fits_embedding(tokens, rows)):
        raise ValueError(f"tokenizer must match the model's vocab_size={rows}, got {tokens} tokens.")


def vocabulary(tokenizer: PreTrainedTokenizerBase) -> tuple[dict[str, int], list[int]]:
    """The id of each token, and the ids of an empty text, in the first language if there are several."""
    language = next(iter(tokenizer_languages(tokenizer)), None)
    return tokenizer.get_vocab(), encode_texts(tokenizer, "", src_lang=language)["input_ids"]
