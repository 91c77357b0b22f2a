"""Whether a tokenizer is a model's."""

from transformers import PreTrainedTokenizerBase

from ..configuration_random_transformer import RandomTransformerConfig

# Toolkits round an embedding's rows up to a multiple of 8, 64 or 128; rows beyond that belong to another vocabulary.
ROUNDED_TO = 128


def fits(tokens: int, rows: int) -> bool:
    """Whether so many tokens may be those of an embedding with so many rows."""
    return tokens <= rows <= -(-tokens // ROUNDED_TO) * ROUNDED_TO


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, config: RandomTransformerConfig) -> None:
    """Refuse a tokenizer of another vocabulary.

    Raises:
        ValueError: it has more tokens than the model, or so many fewer that it cannot be the model's. A model with two
            vocabularies may have any number of tokens left over in one of them.
    """
    tokens, rows = len(tokenizer), config.vocab_size
    if tokens > rows or (config.share_embeddings and not fits(tokens, rows)):
        raise ValueError(f"tokenizer must be the model's, of vocab_size={rows} tokens, got one of {tokens}.")
