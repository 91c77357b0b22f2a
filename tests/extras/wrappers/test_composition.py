"""The wrappers together with what `translate` does without them."""

import pytest

from modeling_random_transformer.extras.wrappers import Glossary
from modeling_random_transformer.inference import translate, translate_n_best
from tests.helpers.calibration import calibrated_translator

TEXTS = ["two", "42", "one", "- 3.5 %", "\u200b\ufeff"]


@pytest.mark.parametrize(("options", "invisible"), [({"split_sentences": True}, TEXTS[4]), ({"mbr": 2, "seed": 3}, "")])
def test_texts_without_letters_are_unchanged(options, invisible, model, tokenizer):
    options = {**options, "num_beams": 2, "progress": False}
    translations = translate(TEXTS, model, tokenizer, **options)
    assert (translations[1], translations[3], translations[4]) == ("42", "- 3.5 %", invisible)
    if "split_sentences" in options:
        assert [translations[0], translations[2]] == translate(["two", "one"], model, tokenizer, **options)


@pytest.mark.parametrize(
    "options",
    [{"glossary": Glossary([("boy", "niño")])}, {"repair": True}, {"confidence": True}, {"split_sentences": True}],
    ids=["glossary", "repair", "confidence", "split_sentences"],
)
@pytest.mark.parametrize("spaced", ["the \u200b boy\t\tand \xa0 the girl", "the boy and" + " " * 300 + "the girl"])
def test_texts_that_look_equal_have_equal_candidates(spaced, options):
    """Also their confidence and their problems, which other functions than the model find."""
    model, tokenizer = calibrated_translator()
    options = {"n_best": None, "num_beams": 2, "progress": False, **options}
    plain, other = translate_n_best(["the boy and the girl", spaced], model, tokenizer, **options)
    assert other == plain


@pytest.mark.parametrize("option", ["repair", "confidence"])
def test_spaces_between_numbers_stay(option):
    model, tokenizer = calibrated_translator()
    [[candidate]] = translate_n_best(["1  000\t"], model, tokenizer, n_best=None, progress=False, **{option: True})
    assert candidate.translation == "1  000\t"


@pytest.mark.parametrize(
    "options", [{"repair": True}, {"split_sentences": True}, {"repair": True, "n_best": 2}], ids=str
)
@pytest.mark.parametrize(
    ("text", "prefix"),
    [
        ("%s is gone", "Der"),
        ("hello {name}", "Hola {name}"),
        ("- The dog sees the cat.", "Hola"),
        ("2024", "Jahr"),
        ("THE DOG SEES 4711 CATS.", "Der Hund"),
    ],
)
def test_a_translation_begins_with_its_prefix(text, prefix, options, model, tokenizer):
    options = {"n_best": None, "num_beams": 2, "max_new_tokens": 24, "progress": False, **options}
    [candidates] = translate_n_best([text], model, tokenizer, prefixes=[prefix], **options)
    for candidate in candidates:
        assert candidate.translation.startswith(prefix)
        assert candidate.translation.count("{name}") == prefix.count("{name}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keep_source": True}, "keep_source must be False without min_confidence, got True"),
        ({"confidence": True}, r"confidence must be unset \(translate_n_best returns .*\), got True"),
    ],
)
def test_options_without_effect_are_errors(options, message, model, tokenizer):
    with pytest.raises(ValueError, match=message):
        translate(TEXTS, model, tokenizer, **options)
