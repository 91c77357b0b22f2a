"""The words and scripts of texts, and the keys of texts."""

import pytest

from modeling_random_transformer.data.words import scripts_of, text_key

JAPANESE = "犬はボールで遊んでいる。"


def test_scripts_of_texts():
    assert {*scripts_of([JAPANESE])} == {"Han", "Hiragana", "Katakana"}
    assert scripts_of(["1 + 2 = 3!"]) == []  # so that texts without letters are kept
    assert {*scripts_of(["Београд Beograd"])} == {"Cyrillic", "Latin"}
    assert scripts_of(["A text with one foreign letter: ж"]) == ["Latin"]


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
    assert text_key(text) == text_key(plain) == text_key(text.lower()) == text_key(plain.upper())
