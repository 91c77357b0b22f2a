"""Texts in capitals and in title case are translated as ordinary ones."""

import pytest

from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.extras.wrappers.cases import CaseTranslator, case_of
from modeling_random_transformer.inference import Candidate, translate
from modeling_random_transformer.inputs_random_transformer import TextError

TEXTS = ["Der alte Hund sieht Anna.", "Anna sieht den alten Hund am Haus."] * 20


@pytest.fixture(scope="module")
def german():
    return RandomTransformerTokenizer.train(TEXTS, vocab_size=400)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("EIN HUND", "FÜR DAS"),
        ("EIN HUND (12)!", "FÜR DAS"),
        ("Ein Hund Sieht Die Katze", "Für Das"),
        ("It's A Dog's New House", "Für Das"),
        ("ein hund sieht die 2 katzen!", "für das"),
        ("ein hund sieht die katzen,", None),  # a part of a sentence
        ("wir sehen zwei hunde.", "für das"),
        ("siehe oben, hund.", None),
        ("NASA", None),  # an abbreviation
        ("Anna Maria Schmidt", None),  # a name
        ("Ein Hund sieht die Katze", None),
        ("Wir Haben McDonald Und Sohn", None),
        ("मैं तुम से प्यार करता हूँ", None),  # a script without capitals
        ("मैं Facebook से प्यार करता हूँ", None),
        ("12 34!", None),
        ("", None),
    ],
)
def test_the_case_of_a_text_is_recognized_and_applied(text, expected):
    case = case_of(text)
    assert (case and case("für das")) == expected


def test_words_are_in_their_usual_case(german):
    """Names and nouns have fewer tokens with a capital; without a difference, a word is in lower case."""
    to_ordinary = CaseTranslator(None, german).in_ordinary_case
    assert to_ordinary("ANNA SIEHT DEN ALTEN HUND.") == "Anna sieht den alten Hund."
    assert to_ordinary('"DER HUND": XQ') == '"Der Hund": xq'
    assert to_ordinary("2 XQ") == "2 xq"  # the first word is not the beginning of the sentence


def test_a_vocabulary_of_lower_case_texts_has_no_capitals():
    tokenizer = RandomTransformerTokenizer.train([text.lower() for text in TEXTS], vocab_size=400)
    assert CaseTranslator(None, tokenizer).in_ordinary_case("ANNA SIEHT") == "anna sieht"


def test_translations_get_the_case_of_their_texts(german):
    received = []

    def copy(rows, *_):
        received.extend(text for text, _ in rows)
        return [[Candidate(text, confidence=0.5, words=[(text, 0.1)])] for text, _ in rows]

    rows = [("DER ALTE HUND", ""), ("der alte Hund", ""), ("DER HUND", "DER"), ("der hund sieht anna am haus.", "")]
    candidates = [best for [best] in CaseTranslator(copy, german)(rows, 0, lambda _: None)]
    assert received == ["Der alte Hund", "der alte Hund", "DER HUND", "Der Hund sieht Anna am Haus."]
    translations = [best.translation for best in candidates]
    assert translations == ["DER ALTE HUND", "der alte Hund", "DER HUND", "Der Hund sieht Anna am Haus."]
    assert candidates[0].words == [("DER ALTE HUND", 0.1)]


def test_repair_includes_it(model, tokenizer):
    options = {"repair": True, "num_beams": 1, "progress": False}
    [capitals, ordinary] = translate(["A DOG SEES", "a dog sees"], model, tokenizer, **options)
    assert capitals == ordinary.upper()


@pytest.mark.parametrize("text", [None, "\ud800"])
def test_other_texts_are_errors(model, tokenizer, text):
    with pytest.raises(TextError, match="texts must be"):
        translate(["a", text], model, tokenizer, repair=True)
