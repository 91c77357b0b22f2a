"""Placeholders, and the words of a text and of its translation."""

import pytest

from modeling_random_transformer.extras.pairs import placement
from modeling_random_transformer.extras.pairs.placement import unit_spans
from modeling_random_transformer.extras.wrappers.problems import COPIED_NUMBER
from modeling_random_transformer.inputs_random_transformer import Languages


def test_combining_marks_belong_to_their_letters():
    text = "किताब, か\u3099き"
    assert [text[slice(*span)] for span in unit_spans(text)] == ["किताब", ",", "か\u3099", "き"]


def test_links_of_units(model, tokenizer):
    """Units of a punctuation mark and of a word in one token's word have different links."""
    pairs = [("the boy, the girl.", "el niño"), ("two", "dos: tres"), None]
    first, second, none = placement.align_units(model, tokenizer, pairs, Languages())
    assert sorted(target for _, target in first) == [0, 1]
    assert all(source in range(6) for source, _ in first)
    assert second == [(0, 0), (0, 1), (0, 2)]
    assert none is None


@pytest.mark.parametrize(
    ("links", "sources"),
    [(None, ["a", "a", "b", ",", "c"]), ([(3, 0), (0, 3)], ["c", "c", "c", ",", ","])],
)
def test_units_without_links(links, sources):
    text = "a b, c"
    units = placement.linked_units(text, "x y z , w", links)
    assert [text[slice(*unit.source)] for unit in units] == sources


@pytest.mark.parametrize(
    ("text", "kept", "placeholders"),
    [
        ("see {name} now", "see now", [(4, "{name} ")]),
        ("{a} {b} c", "c", [(0, "{a} {b} ")]),
        ("go to %s, now", "go to, now", [(5, " %s")]),
        ("no placeholder", "no placeholder", []),
        ("see\xa0{name}\xa0now", "see\xa0now", [(4, "{name}\xa0")]),
        ("see\t{name}\xa0{age}.", "see.", [(3, "\t{name}\xa0{age}")]),
    ],
)
def test_placeholders_have_an_index_and_their_space(text, kept, placeholders):
    protected = placement.protect(text)
    assert (protected.text, protected.placeholders) == (kept, placeholders)
    assert protected.restore(kept, None) == text


@pytest.mark.parametrize(
    ("translation", "links", "expected"),
    [("ve.", [(1, 1)], "ve %d."), ("ve", [(0, 0)], "ve %d"), ("ve.", [(0, 0), (0, 1)], "ve. %d")],
)
def test_the_space_of_a_placeholder_is_before_it_unless_a_word_follows(translation, links, expected):
    protected = placement.protect("see %d boys")
    assert protected.restore(translation, links) == expected


def test_copied_parts_before_punctuation_keep_their_order():
    protected = placement.protect("see 12 34.", COPIED_NUMBER)
    assert protected.text == "see."
    assert protected.restore("ve.", [(0, 0), (1, 1)]) == "ve 12 34."


def test_a_placeholder_is_before_the_translation_of_the_next_word():
    protected = placement.protect("the {color} boy sees")
    assert protected.needs_alignment
    assert protected.restore("el ve niño", [(0, 0), (2, 1), (1, 2)]) == "el ve {color} niño"


@pytest.mark.parametrize("text", ["the v{name} is", "page/{x} is", "the v{x}is", "a {x}th boy", "%s/%s is"])
def test_placeholders_beside_a_word_without_a_space(text):
    protected = placement.protect(text)
    assert protected.restore(protected.text, None) == text


def test_a_placeholder_behind_a_word_is_behind_its_translation():
    protected = placement.protect("the red{x} boy")
    assert protected.restore("el niño rojo", [(0, 0), (2, 1), (1, 2)]) == "el niño rojo{x}"
    protected = placement.protect("see /%s now")  # a word is no translation of a punctuation mark
    assert protected.restore("ve esto ahora", [(0, 0), (1, 1), (2, 2)]) == "ve esto %s ahora"
