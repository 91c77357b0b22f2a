"""Translation of lists and streams: order, batches, options and texts."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pandas import DataFrame
from transformers import GenerationConfig

from modeling_random_transformer import inputs_random_transformer as inputs_module
from modeling_random_transformer.inference import (
    longest_target,
    translate,
    translate_stream,
)
from modeling_random_transformer.inference.translation import Translator, with_prefixes
from tests.helpers.models import EOS
from tests.helpers.translation import random_translator, some_texts

TEXTS = some_texts(40)
FEW = TEXTS[:16]
SHORT = {"max_new_tokens": 6, "num_beams": 1}


@pytest.fixture
def _short_limits(monkeypatch):
    """Limit translations to the source length plus 2 instead of 50, for speed."""
    monkeypatch.setattr(inputs_module, "LONGER_THAN_SOURCE", 2)


def one_by_one(texts, model, tokenizer, num_beams=4, max_new_tokens=None, **options):
    """Reference: generate() for each text separately."""
    options["num_beams"] = num_beams
    if num_beams > 1:
        options.setdefault("length_penalty", 0.6)
    translations = []
    for text in texts:
        inputs = tokenizer(text, return_tensors="pt")
        limit = max_new_tokens or -(-inputs["input_ids"].shape[1] // 16) * 16 + inputs_module.LONGER_THAN_SOURCE
        ids = model.generate(**inputs, max_new_tokens=limit, **options)
        translations += tokenizer.batch_decode(ids, skip_special_tokens=True)
    return translations


@pytest.mark.usefixtures("_short_limits")
class TestTexts:
    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"num_beams": 1, "no_repeat_ngram_size": 2},
            {"num_beams": 3, "length_penalty": 2.0, "early_stopping": True, "max_new_tokens": 5},
        ],
        ids=str,
    )
    def test_batching_does_not_change_translations(self, model, tokenizer, options):
        expected = one_by_one(FEW, model, tokenizer, **options)
        assert len(set(expected)) > 12, "the outputs must differ for the test to be meaningful"
        for sizes in ({}, {"max_batch_tokens": 200}, {"chunk_size": 7}):
            assert translate(FEW, model, tokenizer, **sizes, **options) == expected

    def test_the_length_penalty_is_that_of_the_model_unless_another_one_is_given(self, tokenizer):
        model = random_translator().double()
        models_own = {}
        for penalty in (None, 0.6, -2.0):
            model.generation_config.length_penalty = penalty
            models_own[penalty] = translate(FEW, model, tokenizer, max_new_tokens=12)
            assert translate(FEW, model, tokenizer, length_penalty=0.6, max_new_tokens=12) == models_own[None]
        assert models_own[None] == models_own[0.6] != models_own[-2.0]
        assert models_own[-2.0] == translate(FEW, model, tokenizer, length_penalty=-2.0, max_new_tokens=12)

    def test_blank_texts_are_not_passed_to_the_model(self, model, tokenizer, monkeypatch):
        expected = translate(["two", "one"], model, tokenizer, **SHORT)
        texts = ["", "two", " \t\u2003", "one", "\n"]
        assert translate(texts, model, tokenizer, **SHORT) == ["", expected[0], "", expected[1], ""]
        monkeypatch.setattr(model, "generate", None)
        assert translate(["", " "], model, tokenizer) == ["", ""]
        assert translate([], model, tokenizer) == []

    @pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.1}], ids=str)
    def test_texts_without_letters_are_unchanged(self, model, tokenizer, options):
        expected = translate(["two", "one"], model, tokenizer, **SHORT, **options)
        texts = ["two", "42", "one", "- 3.5 %", "\u200b\ufeff"]
        translations = translate(texts, model, tokenizer, **SHORT, **options)
        assert (translations[1], translations[3]) == ("42", "- 3.5 %")
        assert translations[4] == ""
        assert [translations[0], translations[2]] == expected

    @given(lengths=st.lists(st.integers(1, 50), max_size=40), budget=st.integers(1, 300), num_beams=st.integers(1, 5))
    def test_batches_do_not_exceed_the_budget(self, model, tokenizer, lengths, budget, num_beams):
        pipe = Translator(model, tokenizer, max_batch_tokens=budget, num_beams=num_beams).pipe
        batches = pipe.batch_indices(lengths, [0] * len(lengths), pipe.call_options())
        assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
        assert all(len({longest_target(lengths[i], model.config) for i in batch}) == 1 for batch in batches)
        longest = [max(lengths[i] for i in batch) for batch in batches]
        assert longest == sorted(longest, reverse=True)
        for batch, length in zip(batches, longest, strict=True):
            assert len(batch) * length * num_beams <= budget or len(batch) == 1

    def test_stream_is_read_lazily(self, model, tokenizer):
        read = []

        def texts():
            for text in TEXTS:
                read.append(text)
                yield text

        stream = translate_stream(texts(), model, tokenizer, chunk_size=10, **SHORT)
        assert not read
        for done, _ in enumerate(stream):
            assert len(read) == 10 * (done // 10 + 1)
            assert torch.is_grad_enabled()  # for the caller
            assert not torch.is_inference_mode_enabled()
        assert read == TEXTS

    def test_sampling_is_reproducible_with_a_seed(self, model, tokenizer):
        sampling = {"do_sample": True, "top_k": 0, "chunk_size": 10, **SHORT}
        first = translate(TEXTS, model, tokenizer, seed=1, **sampling)
        assert translate(TEXTS, model, tokenizer, seed=1, **sampling) == first
        assert translate(TEXTS, model, tokenizer, seed=2, **sampling) != first
        # Each chunk has its own seed: the sample depends on the position of the text.
        assert first != translate(TEXTS[20:] + TEXTS[:20], model, tokenizer, seed=1, **sampling)

    def test_the_progress_bar_is_shown_on_request_only(self, model, tokenizer, capsys):
        translate([*TEXTS, ""], model, tokenizer, **SHORT)
        assert capsys.readouterr().err == ""
        translate([*TEXTS, ""], model, tokenizer, progress=True, **SHORT)
        captured = capsys.readouterr()
        assert "41/41" in captured.err
        assert captured.out == ""


def test_a_prefix_that_looks_empty_is_none():
    """Otherwise, it would turn `repair` off."""
    rows = with_prefixes(["a", "b", "c", "d"], ["", " \u200b", "\ufeff", " x"])
    assert [*rows] == [("a", ""), ("b", ""), ("c", ""), ("d", " x")]


@pytest.mark.parametrize("prefix", [None, 5, b"the"])
def test_a_prefix_that_is_no_string_is_an_error(model, tokenizer, prefix):
    with pytest.raises(ValueError, match=f"index 1: prefixes must be strings, got {prefix!r}"):
        translate(TEXTS[:2], model, tokenizer, prefixes=["", prefix])


def test_learned_positions_limit_targets(tokenizer):
    """A translation has at most as many tokens as there are positions."""
    model = random_translator(position_embedding="learned", max_position_embeddings=20)
    assert longest_target(15, model.config) == 20
    assert longest_target(15, random_translator(max_position_embeddings=20).config) == 66
    model.lm_head.bias.data[EOS] = -100.0
    for options in ({}, {"max_new_tokens": 99}, {"num_beams": 1}):
        translate(TEXTS[:3], model, tokenizer, max_source_tokens=20, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_beams": 0}, "num_beams must be a positive integer, got 0."),
        ({"num_beams": 10**9}, "num_beams must be at most 1000, got 1000000000."),
        ({"mbr": 10**9}, "mbr must be at most 1000, got 1000000000."),
        ({"max_source_tokens": True}, "max_source_tokens must be None or a positive integer, got True."),
        ({"chunk_size": 0}, "chunk_size must be a positive integer, got 0."),
        ({"num_return_sequences": 2}, "num_return_sequences must not be given, got 2."),
        ({"max_length": 9}, "max_length must not be given, got 9."),
        ({"return_scores": True}, "return_scores must not be given, got True."),
        ({"target_prefix": "el"}, "target_prefix must not be given, got 'el'."),
        ({"length_penalty": "1"}, "length_penalty must be None or a number from -2 to 10, got '1'."),
        ({"length_penalty": True}, "length_penalty must be None or a number from -2 to 10, got True."),
        ({"min_confidence": "0.5"}, "min_confidence must be None or a number from 0 to 1, got '0.5'."),
        ({"repair": "no"}, "repair must be True or False, got 'no'."),
        ({"split_sentences": 1}, "split_sentences must be True or False, got 1."),
        ({"min_confidence": math.nan}, "min_confidence must be None or a number from 0 to 1, got nan."),
        ({"length_penalty": 2.0, "num_beams": 1}, "length_penalty must be None without beam search, got 2.0."),
        ({"length_penalty": 2.0, "mbr": 2}, "length_penalty must be None without beam search, got 2.0."),
        ({"seed": 3}, "seed must be None without do_sample or mbr, got 3."),
        ({"temperature": 0.5}, "options must be valid for .*: GenerationConfig is invalid: - `temperature`.*"),
        (
            {"early_stopping": True, "num_beams": 1},
            "options must be .*: GenerationConfig is invalid: - `early_stopping`.*",
        ),
        ({"suppress_tokens": 1}, r"options must be valid for generate\(\): TypeError: 'int' object is not iterable"),
        ({"seed": 1.5}, f"seed must be None or an integer from -{2**62} to {2**62}, got 1.5."),
        ({"seed": 2**63}, f"seed must be None or an integer from -{2**62} to {2**62}, got {2**63}."),
        ({"generation_config": GenerationConfig(num_beams=1)}, "generation_config must be None: give its .*"),
        ({"prefixes": "the"}, "prefixes must be an iterable of strings, got one str."),
        ({"prefixes": 3}, "prefixes must be an iterable of strings, got one int."),
    ],
    ids=str,
)
def test_invalid_option_is_an_error_before_the_first_text(model, tokenizer, options, message):
    with pytest.raises(ValueError, match=f"^{message}$"):
        translate_stream(TEXTS, model, tokenizer, **options)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ("one text", "texts must be an iterable of strings, got one str"),
        ({"one": "text"}, "texts must be an iterable of strings, got one dict"),
        (DataFrame({"en": ["one"]}), "texts must be an iterable of strings, got one DataFrame"),
        (["one", 2], "index 1: texts must be strings, got 2."),
        (["a", "b", "c", "\ud800"], "index 3: texts must be Unicode, got"),
    ],
    ids=["a string", "a dictionary", "a table", "an integer", "half a character"],
)
def test_invalid_text(model, tokenizer, texts, message):
    with pytest.raises(ValueError, match=message):
        translate(texts, model, tokenizer, chunk_size=3, **SHORT)
