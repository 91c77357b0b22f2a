"""Checks that a tokenizer matches a model."""

import pytest

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.inference.loading import check_tokenizer, fits_embedding
from tests.helpers.models import tiny_config


@pytest.mark.parametrize(
    ("tokens", "rows", "expected"),
    [
        (61, 61, True),
        (62, 61, False),
        (32100, 32128, True),  # T5
        (250100, 250112, True),  # mT5
        (500, 512, True),
        (500, 513, False),
        (1472, 1472, True),
        (1, 128, True),
    ],
)
def test_rows_may_be_rounded_up(tokens, rows, expected):
    assert fits_embedding(tokens, rows) is expected


def test_tokenizer_must_match_the_model():
    tokenizer = RandomTransformerTokenizer.train(["a dog sees a red car"] * 9, vocab_size=270)
    size = len(tokenizer)
    for rows in (size, size + 1):
        check_tokenizer(tokenizer, tiny_config(vocab_size=rows))
    two = {"share_embeddings": False, "tie_word_embeddings": False}
    check_tokenizer(tokenizer, tiny_config(vocab_size=9 * size, **two))
    for rows, options in ((size - 1, {}), (9 * size, {}), (size - 1, two)):
        with pytest.raises(ValueError, match=f"must match the model's vocab_size={rows}, got {size} tokens"):
            check_tokenizer(tokenizer, tiny_config(vocab_size=rows, **options))
