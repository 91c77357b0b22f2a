"""Texts of several sentences: what is split, what stays unchanged, and the limit on tokens."""

import logging

import pytest

from modeling_random_transformer.extras.wrappers.sentences import SentenceSplitter, SplitText
from modeling_random_transformer.inference import translate
from modeling_random_transformer.inference.translation import Translator
from tests.helpers.translation import SENTENCES, multilingual_translator

PARAGRAPHS = "  One boy. Two girls!\n\n\tDr. Smith reads  (p. 5).  He sees it.\r\n---\n3.\n- the end"


@pytest.fixture
def splitter(translator, tokenizer):
    """A function that makes a splitter with the arguments."""
    return lambda *options: SentenceSplitter(Translator(translator, tokenizer).pipe, *options)


@pytest.mark.parametrize(
    ("language", "text", "sentences"),
    [
        ("en", PARAGRAPHS, ["One boy.", "Two girls!", "Dr. Smith reads  (p. 5).", "He sees it.", "the end"]),
        (None, "no end", ["no end"]),
        ("de_DE", "Das ist z.B. Dr. Müller. Er geht.", ["Das ist z.B. Dr. Müller.", "Er geht."]),
        ("de-DE", "Siehe bzw. Abb. 3. Er geht.", ["Siehe bzw. Abb. 3.", "Er geht."]),
        ("zh", "你好。我是。“好！”", ["你好。", "我是。", "“好！”"]),
        ("xx", "One.\u2028Two.", ["One.", "Two."]),
        ("en", " \n\n12 %\n", []),
        ("en", "", []),
    ],
)
def test_all_but_the_sentences_is_unchanged(splitter, language, text, sentences):
    split = splitter(None, language)(text)
    assert split.sentences == sentences
    assert splitter()(text).join([f" {sentence.upper()} " for sentence in splitter()(text).sentences]) == text.upper()


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("see www.Example.Com now", ["see www.Example.Com now"]),
        ("see http://a.b/c?d=Yes!No. Two", ["see http://a.b/c?d=Yes!No.", "Two"]),
        ("java.util.List is", ["java.util.", "List is"]),
        ("plan B\xa0. Two", ["plan B\xa0.", "Two"]),
        ("A\u3000. Two", ["A\u3000.", "Two"]),
        ("one " * 100 + "x" * 400, None),
    ],
    ids=["domain", "URL", "words with a full stop", "no-break space", "wide space", "long word"],
)
def test_text_without_spaces_between_sentences_is_unchanged(splitter, text, sentences):
    split = splitter()(text)
    assert sentences is None or split.sentences == sentences
    assert split.join(split.sentences) == text


MARKERS = ("- ", "* ", "+ ", "# ", "### ", "> ", "> > ", "• ", "10) ", "(a) ", "3. ", " - [ ] ", "– ", "\t* ", "♪ ")


@pytest.mark.parametrize("marker", MARKERS)
def test_markers_are_kept(marker, splitter):
    split = splitter()(f"{marker}the boy. the girl.\n{marker}two")
    assert split.sentences == ["the boy.", "the girl.", "two"]
    assert split.join(["A.", "B.", "c"]) == f"{marker}A. B.\n{marker}c"


@pytest.mark.parametrize("text", ["-the", "#tag here", "a dog", "2020 was", "I see", "*bold* text", "A. Smith"])
def test_words_are_not_markers(text, splitter):
    assert splitter()(text).sentences[0].startswith(text[:2])


@pytest.mark.parametrize("texts", [["12"], [""], [" \n", "3."]])
def test_texts_without_a_sentence(texts, translator, tokenizer):
    assert translate(texts, translator, tokenizer, split_sentences=True) == texts


@pytest.mark.parametrize(
    ("gaps", "translations", "expected"),
    [
        (["", "", ""], ["Hello.", "World."], "Hello. World."),  # from Chinese
        (["", " ", ""], ["你好。", "世界。"], "你好。世界。"),  # to Chinese
        (["", "\n", ""], ["你好。", "世界。"], "你好。\n世界。"),
        (["", " ", ""], ["“你好。”", "世界。"], "“你好。”世界。"),
        (["", "", ""], ["“Hello.”", "World."], "“Hello.” World."),
        (["", "  ", " "], ["Hello.", "World."], "Hello.  World. "),
        (["", " ", ""], ["", "World."], " World."),
    ],
)
def test_space_between_sentences_is_that_of_the_target_language(gaps, translations, expected):
    assert SplitText(["…"] * 2, gaps).join(translations) == expected


@pytest.mark.parametrize(
    ("limit", "text", "parts", "reported"),
    [
        (6, "the boy, the girls: the house", ["the boy,", "the girls:", "the house"], False),
        (12, "the boy and the girls see the old house", ["the boy and the girls", "see the old house"], True),
        (5, "ñ" * 8, ["ññ"] * 4, True),
        (40, "the boy, the girls", ["the boy, the girls"], False),
    ],
)
def test_long_sentences_are_split_at_clauses_before_they_are_cut(splitter, caplog, limit, text, parts, reported):
    split = splitter(limit)
    with caplog.at_level(logging.WARNING):
        assert split(text).sentences == parts
    assert [
        f"A clause of {len(text)} characters was cut: it has more than {limit} tokens."
    ] * reported == caplog.messages
    assert not any(map(split.is_long, parts))


def test_a_part_is_measured_without_the_space_before_it(splitter, tokenizer):
    limit = len(tokenizer(" niñas").input_ids)
    assert len(tokenizer("niñas").input_ids) > limit  # the beginning of a sentence has more tokens
    parts = splitter(limit)("no, niñas").sentences
    assert "".join(parts) == "no,niñas"
    assert all(len(tokenizer(part).input_ids) <= limit for part in parts)


def test_sentences_are_translated_one_by_one(translator, tokenizer):
    first, second, third = translate(SENTENCES[:3], translator, tokenizer)
    text = f"{SENTENCES[0]}\n\n  {SENTENCES[1]}\n{SENTENCES[2]}\n"
    translations = translate([text, "", SENTENCES[0]], translator, tokenizer, split_sentences=True, src_lang="en")
    assert translations == [f"{first.strip()}\n\n  {second.strip()}\n{third.strip()}\n", "", first.strip()]


def test_language_of_a_multilingual_model():
    """The tokenizer has no language of its own; that of the call is also the one of the limit on tokens."""
    model, tokenizer = multilingual_translator()
    options = {"src_lang": "en", "tgt_lang": "es"}
    first, second = translate(["the cat.", "the dog."], model, tokenizer, **options)
    (translation,) = translate(["the cat. the dog."], model, tokenizer, split_sentences=True, **options)
    assert translation == f"{first.strip()} {second.strip()}"
    assert tokenizer.src_lang is None


def test_invalid_arguments(translator, tokenizer):
    with pytest.raises(ValueError, match="index 1: texts must be strings, got 3"):
        translate(["a", 3], translator, tokenizer, split_sentences=True)
    with pytest.raises(ValueError, match=r"index 1: texts must be Unicode, got '\\ud800a'"):
        translate(["a. b.", "\ud800a"], translator, tokenizer, split_sentences=True)
