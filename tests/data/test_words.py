"""The words and scripts of texts, and the keys of texts."""

from unicodedata import normalize as unicode_form

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.data.words import LETTERS, WORD, scripts_of, text_digest, words_digest

JAPANESE = "犬はボールで遊んでいる。"


def test_scripts_of_texts():
    assert {*scripts_of([JAPANESE])} == {"Han", "Hiragana", "Katakana"}
    assert scripts_of(["1 + 2 = 3!"]) == []  # so that texts without letters are kept
    assert {*scripts_of(["Београд Beograd"])} == {"Cyrillic", "Latin"}
    assert scripts_of(["A text with one foreign letter: ж"]) == ["Latin"]


@pytest.mark.parametrize(
    ("text", "scripts"),
    [
        ("aaaaaaaaa ж", ["Latin", "Cyrillic"]),
        ("aaaaaaaaaa ж", ["Latin"]),
        ("жж aaa", ["Latin", "Cyrillic"]),
        ("жжж aa", ["Cyrillic", "Latin"]),
    ],
)
def test_scripts_have_a_share_of_the_letters_and_are_in_its_order(text, scripts):
    assert scripts_of([text]) == scripts_of(list(text)) == scripts


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("20℃", "20°C"),
        ("№ 5", "no 5"),
        ("foo™", "footm"),
        ("Ⓐ", "a"),
        ("ＡＢ", "ab"),
        ("㎏", "kg"),
        ("㏒", "log"),
        ("Ŀ", "l·"),
    ],
)
def test_compatibility_characters_and_case_do_not_change_the_key(text, plain):
    assert words_digest(text) == words_digest(plain) == words_digest(text.lower()) == words_digest(plain.upper())


def test_letters_of_several_scripts_and_marks_count_for_no_script():
    text = "aー1\u0301ж_か\u3099"  # U+30FC is in Hiragana and Katakana
    assert LETTERS.findall(text) == ["a", "ж", "か"]
    assert scripts_of(["ーー"]) == []


WORDS = st.lists(st.text("aéßﬁ℃жσकि가", min_size=1).filter(lambda word: word[0] != "ि"), min_size=1, max_size=4)


@given(WORDS, st.sampled_from([" ", ", ", " – ", "!  ", "\u200c "]), st.sampled_from(["NFC", "NFD", "NFKC", "NFKD"]))
def test_punctuation_and_unicode_form_do_not_change_the_key(words, separator, form):
    key = words_digest(" ".join(words))
    assert words_digest(unicode_form(form, separator.join(words)) + ".") == key
    assert words_digest(" ".join([*words, "other"])) != key


def test_invisible_joiners_do_not_change_the_key():
    assert words_digest("می\u200cخواهم") == words_digest("می\u200dخواهم") == words_digest("میخواهم")


@pytest.mark.parametrize(("first", "second"), [("❤", "😀"), ("!", "?"), ("", "!")])
def test_texts_without_words_are_compared_completely(first, second):
    assert words_digest(first) != words_digest(second)


@given(st.text(st.characters(), max_size=5))
def test_a_digest_has_64_bits_for_any_text(text):
    for key in (text_digest(f"{text}\ud800"), words_digest(text)):
        assert len(key) == 8


@pytest.mark.parametrize(
    ("text", "words"),
    [("किताब", ["किताब"]), ("❤\ufe0f a", ["a"]), ("\u0301a", ["a"]), ("l'eau, 3 x_1", ["l", "eau", "3", "x_1"])],
)
def test_marks_belong_to_words_and_do_not_begin_one(text, words):
    assert WORD.findall(text) == words
