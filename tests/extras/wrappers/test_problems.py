"""What is suspicious in a translation: each problem, and texts that have none."""

import pytest

from modeling_random_transformer.extras.wrappers.problems import (
    COPY,
    EMPTY,
    LENGTH,
    LOOP,
    NUMBERS,
    SCRIPT,
    UNFINISHED,
    Detector,
)
from modeling_random_transformer.extras.wrappers.problems import detector_of as make_detector
from modeling_random_transformer.inference import Candidate
from modeling_random_transformer.inference.confidence import CALIBRATION, Calibration, Calibrations
from tests.helpers.translation import random_tokenizer, random_translator

DETECT = Detector("</s>", scripts=["Latin"])
LONG = "the boy reads an old book about two red apples in the garden of the house"


@pytest.mark.parametrize(
    ("source", "translation", "problems"),
    [
        ("a dog", " ", [EMPTY]),
        ("a dog", "ein Hund", []),
        ("the the the", "der der der", []),  # as its source
        ("no no no", "nein nein nein nein nein nein nein nein", [LOOP]),
        ("a dog", "der hund und der hund und der hund und", [LOOP]),
        ("a dog", "Hund Hund Hund", [LOOP]),
        ("the dog runs around", "Er kennt einen, kennt sie, kennt Tomaten und kennt es", [LOOP]),  # a word in three
        (
            "the woman who knows it is here",
            "die Frau, die die Tasche und die Katze kennt, ist hier im alten Haus am See",
            [],
        ),
        ("ha ha ha ha ha ha", "ha ha ha ha ha ha!", [COPY]),
        ("in der Stadt Berlin", "in der Stadt, Berlin", [COPY]),
        ("Angela Merkel", "Angela Merkel", []),  # a name
        ("A dog.", "собака", [SCRIPT]),
        ("a dog", "Hund " * 3 + "und eine Katze, die auf dem Dach eines alten Hauses sitzt", [LOOP, LENGTH]),
        (LONG, "der Junge", [LENGTH]),
        (LONG, "er sieht " + "den alten Mann an, ".join(["dann ", "jetzt ", "bald "]) + "ihn", []),
        (LONG, " und ".join(f"dort in der Stadt {place}" for place in ("A", "B", "C")), [LOOP]),  # with gaps
        ("犬", "犬が庭で本を読んでいるのを見た" * 3, [LOOP, LENGTH, SCRIPT]),
    ],
)
def test_each_problem(source, translation, problems):
    assert DETECT(source, Candidate(translation, tokens=["a", "</s>"])) == problems


@pytest.mark.parametrize(
    "number",
    [
        "10 000",
        "10\u00a0000",
        "10\u2009000",
        "10\u202f000",
        "10.000",
        "10'000",
        "10\u2019000",
        "\u0661\u0660\u066c\u0660\u0660\u0660",
    ],
    ids=ascii,
)
def test_a_number_is_the_same_in_the_notation_of_another_language(number):
    for source, translation in ((number, "10,000"), ("10,000", number)):
        candidate = Candidate(f"eine Stadt mit {translation} Menschen", tokens=["</s>"])
        assert DETECT(f"a city of {source} people", candidate) == []
    for translation in ("10", "", f"{number}0"):
        candidate = Candidate(f"eine Stadt mit {translation} Menschen", tokens=["</s>"])
        assert DETECT(f"a city of {number} people", candidate) == [NUMBERS]


@pytest.mark.parametrize(
    ("source", "translation"),
    [
        ("it was 100 200", "es waren 100, 200"),
        ("at 14:30", "à 14h30"),
        ("on 2020-01-15", "am 15.01.2020"),
        ("22. Mai", "May 22nd"),
        ("Im Jahr 1990", "The 1990s"),
        ("the year 2020", "2020年"),
    ],
)
def test_numbers_in_another_form_are_not_missing(source, translation):
    assert DETECT(source, Candidate(translation, tokens=["</s>"])) in ([], [SCRIPT])


def test_a_translation_without_an_end():
    assert DETECT("a dog", Candidate("ein Hund", tokens=["ein", "Hund"])) == [UNFINISHED]


def test_an_end_token_that_is_the_padding():
    """It is not in the tokens of a candidate."""
    tokenizer = random_tokenizer()
    tokenizer.pad_token = tokenizer.eos_token
    detect = make_detector(random_translator(), tokenizer)
    assert detect("a dog", Candidate("ein Hund", tokens=["ein", "Hund"])) == []


@pytest.mark.parametrize("text", ["", "12:30", "1 2 3 4 5 5 5 5 5 5"])
def test_texts_that_the_model_does_not_translate(text):
    assert DETECT(text, Candidate(text)) == []


def test_the_calibration_tells_the_length_and_the_script():
    model, tokenizer = random_translator(), random_tokenizer()
    chinese = Candidate("男孩在花园里读一本书", tokens=[tokenizer.eos_token])
    source = "the boy reads a book in the garden of his old house in the city"
    model.calibrations = Calibrations()
    model.calibrations.by_file[CALIBRATION] = Calibration(50.0, 100, [], 0.0, length_ratio=0.3, scripts=["Han"])
    assert make_detector(model, tokenizer)(source, chinese) == []
    assert make_detector(model, tokenizer)(source, Candidate("el niño lee un libro", tokens=["</s>"])) == [SCRIPT]
