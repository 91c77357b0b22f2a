"""The search of a model as engines compute it, and the vocabulary and the positions that they need for it."""

import pytest
from transformers import GenerationConfig

from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer.extras.export.search import (
    engine_search,
    min_new_tokens,
    suppressed_sequences,
    table_positions,
    token_list,
)

CONFIG = RandomTransformerConfig.from_preset("tiny", vocab_size=10)


@pytest.mark.parametrize(("tokens", "expected"), [(None, []), (2, [2]), ([2, 3], [2, 3])])
def test_one_token_or_several(tokens, expected):
    assert token_list(tokens) == expected


@pytest.mark.parametrize(("options", "expected"), [({}, 0), ({"min_length": 5}, 4), ({"min_new_tokens": 3}, 3)])
def test_minimum_lengths(options, expected):
    assert min_new_tokens(GenerationConfig(**options)) == expected


def test_suppressed_sequences_are_in_the_vocabulary_and_leave_the_end():
    options = GenerationConfig(eos_token_id=2, suppress_tokens=[4, 11], bad_words_ids=[[2], [4], [5, 6], [7, 99]])
    assert suppressed_sequences(options, 10) == [[4], [5, 6]]


@pytest.mark.parametrize(
    ("options", "positions"),
    [
        ({"position_embedding": "learned", "max_position_embeddings": 20}, 20),
        ({"max_position_embeddings": 20}, 1024),
        ({"max_position_embeddings": 2000}, 2000),
    ],
)
def test_positions_of_a_table(options, positions):
    assert table_positions(RandomTransformerConfig.from_preset("tiny", vocab_size=10, **options)) == positions


def test_options_of_the_search():
    options = GenerationConfig(decoder_start_token_id=1, eos_token_id=2, suppress_tokens=[4], no_repeat_ngram_size=3)
    search = engine_search(options, CONFIG, "an engine")
    assert (search.start_token, search.end_tokens, search.suppressed_tokens) == (1, [2], [4])
    assert (search.no_repeat_ngram_size, search.prefix, search.length_penalty) == (3, "", 0.6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"repetition_penalty": 1.5}, "repetition_penalty must be 1 for an engine, got 1.5"),
        ({"stop_strings": ["."]}, r"stop_strings must be None for an engine, got \['.'\]"),
        ({"decoder_start_token_id": None, "bos_token_id": None}, "decoder_start_token_id must be one token id"),
    ],
)
def test_options_that_engines_would_ignore(options, message):
    with pytest.raises(ValueError, match=message):
        engine_search(GenerationConfig(**({"decoder_start_token_id": 1} | options)), CONFIG, "an engine")
