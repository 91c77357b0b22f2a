"""The search of a model as engines compute it, and the vocabulary and the positions that they need for it."""

from types import SimpleNamespace

import pytest
from transformers import GenerationConfig

from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer.extras.export.search import (
    UNSUPPORTED_OPTIONS,
    engine_search,
    min_new_tokens,
    read_search,
    suppressed_sequences,
    table_positions,
    token_list,
    token_names,
    vocabularies,
)
from tests.helpers.translation import multilingual_translator

CONFIG = RandomTransformerConfig.from_preset("tiny", vocab_size=10)


@pytest.mark.parametrize(("tokens", "expected"), [(None, []), (2, [2]), ([2, 3], [2, 3])])
def test_one_token_or_several(tokens, expected):
    assert token_list(tokens) == expected


@pytest.mark.parametrize(("options", "expected"), [({}, 0), ({"min_length": 5}, 4), ({"min_new_tokens": 3}, 3)])
def test_minimum_lengths(options, expected):
    assert min_new_tokens(GenerationConfig(**options)) == expected


def test_suppressed_sequences_are_in_the_vocabulary_and_leave_the_end():
    options = GenerationConfig(eos_token_id=2, suppress_tokens=[4, 11, -1], bad_words_ids=[[2], [4], [5, 6], [7, 99]])
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
    assert (search.no_repeat_ngram_size, search.prefix, search.length_penalty, search.patience) == (3, "", 0.6, 1)
    assert engine_search(GenerationConfig(decoder_start_token_id=1, patience=2), CONFIG, "an engine").patience == 2


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


@pytest.mark.parametrize("name", UNSUPPORTED_OPTIONS)
def test_values_without_an_effect_are_those_of_no_option(name):
    start = {"decoder_start_token_id": 1}
    expected = engine_search(GenerationConfig(**start), CONFIG, "an engine")
    for value in (None, UNSUPPORTED_OPTIONS[name]):
        options = GenerationConfig(**start)
        setattr(options, name, value)
        assert engine_search(options, CONFIG, "an engine") == expected


def test_the_first_token_is_the_tag_of_the_target_language():
    model, tokenizer = multilingual_translator()
    with pytest.raises(ValueError, match=r"tgt_lang must be one of en, es, fr, got None\."):
        read_search(model, tokenizer, "an engine")
    tokenizer.tgt_lang = "es"
    assert read_search(model, tokenizer, "an engine").first_token == tokenizer.get_lang_id("es")
    model.generation_config.forced_bos_token_id = tokenizer.get_lang_id("fr")
    assert read_search(model, tokenizer, "an engine").first_token == tokenizer.get_lang_id("fr")


def test_a_model_without_languages_has_no_first_token(model, tokenizer):
    assert read_search(model, tokenizer, "an engine").first_token is None


@pytest.mark.parametrize("added", [0, 2])
def test_tokens_are_in_the_order_of_their_ids(added, tokenizer):
    size = len(tokenizer)
    expected = tokenizer.convert_ids_to_tokens(range(size)) + [f"<no token {size + i}>" for i in range(added)]
    assert token_names(tokenizer, size + added) == [expected, expected]


def test_two_vocabularies():
    source, target = {"a": 0, "b": 1}, {"c": 1, "d": 0}
    tokenizer = SimpleNamespace(get_vocab=lambda: source, target_encoder=target, separate_vocabs=True)
    assert vocabularies(tokenizer) == (source, target)
    assert token_names(tokenizer, 2) == [["a", "b"], ["d", "c"]]
    tokenizer.separate_vocabs = False
    assert vocabularies(tokenizer) == (source, source)
