"""From texts to the inputs of a model: checks, languages, limits on lengths, chunks and batches."""

import math
import re
from itertools import chain, pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.inputs_random_transformer import (
    Languages,
    TextError,
    batches_by_tokens,
    check_choice,
    check_languages,
    check_positive,
    check_text,
    check_type,
    chunks,
    drop_none,
    encode_texts,
    language_id,
    longest_target,
    max_source_positions,
    max_target_positions,
    name_lines_in_errors,
    pad_ids,
    process_chunks,
    renumber_errors,
    source_limit,
    tokenizer_languages,
)
from tests.helpers.models import tiny_config, tiny_model
from tests.helpers.translation import random_translator

# Checks of arguments and texts


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (3, "texts must be strings, got 3."),
        (b"a", "texts must be strings, got b'a'."),
        ("a\ud800", "texts must be Unicode, got 'a\\ud800': "),
        ("", "texts must not be blank, got ''."),
        (" \u2003\ufeff", "texts must not be blank, got "),
    ],
)
def test_a_text_that_cannot_be_used_is_named_by_its_index(text, reason):
    with pytest.raises(TextError, match=f"^{re.escape(f'index 7: {reason}')}") as caught:
        check_text(text, 7)
    assert caught.value.index == 7
    check_text(f"a{text!r}", 7)


def test_the_index_of_an_error_becomes_a_number_or_a_line():
    with pytest.raises(TextError, match=r"^index 30: no\.$"), renumber_errors([10, 20, 30]):
        raise TextError(2, "no.")
    with pytest.raises(ValueError, match=r"^a\.txt, line 13: no\.$"), name_lines_in_errors("a.txt", first=10):
        raise TextError(2, "no.")
    for convert in (renumber_errors([]), name_lines_in_errors("a.txt")):
        with pytest.raises(KeyError), convert:
            raise KeyError


@pytest.mark.parametrize(
    ("check", "message"),
    [
        (lambda: check_type("a", 3, str, "a string"), "a must be a string, got 3."),
        (lambda: check_positive(a=1, b=0), "b must be a positive integer, got 0."),
        (lambda: check_positive(a=True), "a must be a positive integer, got True."),
        (lambda: check_positive(a=2.0), "a must be a positive integer, got 2.0."),
        (lambda: check_positive(a=None), "a must be a positive integer, got None."),
        (lambda: check_positive(or_none=True, a=-1), "a must be None or a positive integer, got -1."),
        (lambda: check_positive(limit=5, a=5, b=6), "b must be at most 5, got 6."),
        (lambda: check_choice(iter("xy"), a="x", b="z"), "b must be one of x, y, got 'z'."),
        (lambda: check_choice([], a="x"), "a must be unset, got 'x'."),
    ],
)
def test_invalid_arguments_are_named(check, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check()


def test_valid_arguments_raise_nothing():
    check_type("a", None, str, "a string")
    check_type("a", "b", str, "a string")
    check_positive(limit=5, a=1, b=5)
    check_positive(or_none=True, a=None, b=1)
    check_choice("xy", a="x", b="y")
    assert drop_none(a=None, b=0, c="", d=False) == {"b": 0, "c": "", "d": False}


# Languages


TOKENIZERS = {
    "this project's": SimpleNamespace(src_lang="en", tgt_lang=None, languages=["en", "es"], get_lang_id={"es": 5}.get),
    "mBART's": SimpleNamespace(src_lang="en", tgt_lang=None, lang_code_to_id={"en": 4, "es": 5}),
    "M2M-100's": SimpleNamespace(src_lang="en", tgt_lang=None, lang_code_to_token={"en": "_en_", "es": "_es_"}),
    "NLLB's": SimpleNamespace(src_lang="en", tgt_lang=None, extra_special_tokens=["en", "es"]),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_languages_of_tokenizers(name):
    tokenizer = TOKENIZERS[name]
    assert tokenizer_languages(tokenizer) == ["en", "es"]
    tags = Languages.of(tokenizer, tgt_lang="es")
    assert (tags, tags.codes) == (Languages("en", "es"), ("en", "es"))
    assert tags.arguments_for(tokenizer) == tags.arguments == {"src_lang": "en", "tgt_lang": "es"}
    assert Languages("es").arguments == {"src_lang": "es"}
    assert Languages("es").codes == ("es",)
    with pytest.raises(ValueError, match=r"^tgt_lang must be one of en, es, got None\.$"):
        Languages.of(tokenizer)
    with pytest.raises(ValueError, match=r"^src_lang must be one of en, es, got 'fr'\.$"):
        check_languages(tokenizer, "fr", None)
    check_languages(tokenizer, None, None)


def test_tokenizers_without_languages():
    tokenizer = SimpleNamespace(languages=["en"])
    assert tokenizer_languages(tokenizer) == []
    assert Languages.of(tokenizer) == Languages()
    assert Languages("en", "es").arguments_for(tokenizer) == {}
    with pytest.raises(ValueError, match=r"^tgt_lang must be None for a model without language tags, got 'es'\.$"):
        Languages.of(tokenizer, tgt_lang="es")


def test_the_id_of_a_language():
    assert language_id(TOKENIZERS["this project's"], "es") == 5
    assert language_id(SimpleNamespace(convert_tokens_to_ids={"es": 6}.get), "es") == 6


class OtherTokenizer:
    """A tokenizer of transformers, whose languages are attributes."""

    src_lang, tgt_lang = "en", None

    def __call__(self, text, **options):
        if not text:
            raise KeyError
        return {"text": text, "languages": (self.src_lang, self.tgt_lang), **options}


def test_languages_of_one_call():
    tokenizer = OtherTokenizer()
    encoded = encode_texts(tokenizer, "a", src_lang="fr", tgt_lang="es", padding=True)
    assert encoded == {"text": "a", "languages": ("fr", "es"), "padding": True}
    assert encode_texts(tokenizer, "a", tgt_lang="es")["languages"] == ("en", "es")
    with pytest.raises(KeyError):
        encode_texts(tokenizer, "", src_lang="fr")
    assert (tokenizer.src_lang, tokenizer.tgt_lang) == ("en", None)


# Limits on lengths


def test_longest_target_is_source_length_plus_50(translator):
    """The source's length, rounded up to a multiple of 16, plus 50."""
    for length, limit in ((1, 66), (16, 66), (17, 82), (300, 354)):
        assert longest_target(length, translator.config) == limit
    assert longest_target(300, translator.config, max_new_tokens=7) == 7
    learned = random_translator(position_embedding="learned", max_position_embeddings=60).config
    assert longest_target(16, learned) == longest_target(16, learned, max_new_tokens=99) == 60


@given(st.integers(1, 500), st.integers(0, 100))
def test_targets_are_longer_than_sources_by_50_to_80_tokens(source_len, prefix_len):
    limit = longest_target(source_len, tiny_config(), prefix_len=prefix_len)
    assert 50 <= limit - source_len - prefix_len <= 50 + 2 * 15
    assert limit - longest_target(source_len, tiny_config()) >= prefix_len
    assert limit >= longest_target(source_len - 1, tiny_config(), prefix_len=prefix_len)


def test_only_position_tables_are_limited():
    learned = tiny_model(position_embedding="learned", max_position_embeddings=20)
    shorter = tiny_model(position_embedding="learned", max_position_embeddings=10)
    computed = tiny_model(max_position_embeddings=20)
    assert (max_source_positions(learned), max_target_positions(learned.config)) == (20, 20)
    assert (max_source_positions(computed), max_target_positions(computed.config)) == (None, None)
    assert max_source_positions(SimpleNamespace(members=[learned, computed, shorter])) == 10
    assert max_source_positions(SimpleNamespace(members=[computed])) is None


@pytest.mark.parametrize(
    ("positions", "max_source_tokens", "limit", "name"),
    [
        (None, None, 30, "tokenizer.model_max_length, which max_source_tokens overrides"),
        (20, None, 20, "the model's positions"),
        (40, None, 30, "tokenizer.model_max_length, which max_source_tokens overrides"),
        (None, 90, 90, "max_source_tokens"),
        (60, 90, 60, "the model's positions"),
    ],
)
def test_the_limit_of_sources_has_the_name_of_its_setting(positions, max_source_tokens, limit, name):
    tokenizer = SimpleNamespace(model_max_length=30)
    assert source_limit(tokenizer, positions, max_source_tokens) == (limit, name)


# Chunks and batches


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=5))
def test_padding_follows_shorter_rows(rows):
    padded = pad_ids(rows, 77)
    assert padded.shape == (len(rows), max(map(len, rows)))
    for row, padded_row in zip(rows, padded.tolist(), strict=True):
        assert [token for token in padded_row if token != 77] == row
        assert padded_row[: len(row)] == row


@given(st.lists(st.integers(), max_size=20), st.integers(1, 6))
def test_chunks_have_all_items_in_order(items, size):
    parts = list(chunks(iter(items), size))
    assert [*chain(*parts)] == items
    assert all(len(part) == size for part in parts[:-1])
    assert all(0 < len(part) <= size for part in parts)
    results = process_chunks(items, size, lambda part, first: [(first + i, item) for i, item in enumerate(part)])
    assert [*results] == [*enumerate(items)]


def test_chunks_are_read_when_they_are_requested():
    source = iter(range(10))
    parts = process_chunks(source, 3, lambda part, _: part)
    assert [next(parts), next(parts)] == [0, 1]
    assert next(source) == 3


@pytest.mark.parametrize("bad", [0, 3, 7])
def test_an_error_in_a_chunk_has_the_index_among_all_items(bad):
    def process(part, first):
        for i, item in enumerate(part):
            if item == bad:
                raise TextError(i, f"{first} is the first.")
        return part

    results = process_chunks(range(10), 3, process)
    with pytest.raises(TextError, match=rf"^index {bad}: {bad // 3 * 3} is the first\.$"):
        list(results)


@given(st.data(), st.integers(0, 25), st.integers(1, 150), st.integers(1, 6) | st.just(math.inf))
def test_batches_are_as_large_as_the_limits_allow(data, count, max_tokens, max_rows):
    sides = data.draw(st.integers(1, 2))
    lengths = data.draw(st.lists(st.tuples(*[st.integers(1, 30)] * sides), min_size=count, max_size=count))
    groups = data.draw(st.lists(st.integers(0, 1), min_size=count, max_size=count))

    def fits(rows):
        tokens = len(rows) * sum(max(lengths[i][side] for i in rows) for side in range(sides))
        return tokens <= max_tokens and len(rows) <= max_rows and len({groups[i] for i in rows}) == 1

    batches = batches_by_tokens(lengths, max_tokens, groups, max_rows)
    rows = [*chain(*batches)]
    assert sorted(rows) == [*range(count)]
    order = [(groups[i], lengths[i]) for i in rows]
    assert order == sorted(order, reverse=True)
    assert all(fits(batch) or len(batch) == 1 for batch in batches)
    assert not any(fits([*batch, following[0]]) for batch, following in pairwise(batches))
    assert batches_by_tokens(lengths, max_tokens) == batches_by_tokens(lengths, max_tokens, [5] * count)


@pytest.mark.parametrize("limits", [{"max_tokens": 4}, {"max_tokens": math.inf, "max_rows": 2}])
def test_a_batch_may_reach_its_limits(limits):
    assert batches_by_tokens([(1, 1)] * 5, **limits) == [[0, 1], [2, 3], [4]]
