"""What the report of cleaning counts in the pairs that are kept."""

import json

import pytest

from modeling_random_transformer.data import ParallelLine, ParallelText
from modeling_random_transformer.extras.cleaning import clean_files, cleaning
from modeling_random_transformer.extras.cleaning.traits import (
    APOSTROPHE,
    NEAR_DUPLICATE,
    ONE_WORD,
    RARE_CHARACTER,
    SAME_LANGUAGE,
    UNUSUAL_RATIO,
    traits,
)

CORPUS = [("the dog's friend sees a red cat. (The Dog!)", "el amigo d\u2019el perro ve un gat\u00f3 rojo.")] * 20
PAIRS = [(f"the dog sees {number} red cats.", f"el perro ve {number} gatos rojos.") for number in range(100, 130)]
PAIRS += [("dog", "perro"), ("cat", "gato"), ("cow", "vaca"), ("bird", "p\u00e1jaro")]
PAIRS += [("The dog sees 100 red cats", "El perro ve 100 gatos rojos!")]


def numbered(pairs):
    return [ParallelLine(number, *pair) for number, pair in enumerate(pairs, start=1)]


@pytest.mark.parametrize(
    ("pair", "expected"),
    [  # the characters, except for \u00f1, are those of the corpus
        (("the dog sees a red cat.", "el perro ve un gato rojo."), []),
        (("the Dog's friend sees a red cat! The dog", "el amigo d\u2019el perro ve un gato rojo"), [NEAR_DUPLICATE]),
        (("the Dog's friend sees a red cat! The dog", "el amigo d\u2019el perro ve un rojo"), []),
        (("the dog", "el perro ve un gato rojo."), [UNUSUAL_RATIO]),
        (("a red dog sees a cat", "un gato"), [UNUSUAL_RATIO]),
        (("the dog", "el \u00f1 perro"), [RARE_CHARACTER]),
        (("cat.", "(gato)"), [ONE_WORD]),
        (("a cat", "gato"), []),
        (("...", "..."), [ONE_WORD]),
        (("a red cat sees the dog", "The red cat sees rojo."), [SAME_LANGUAGE]),
        (("a red cat sees the dog", "The red cat un perro."), []),
        (("un gato", "un gato"), [SAME_LANGUAGE]),
        (("un gato", "un perro"), []),
        (("the dog\u2019s cat", "el gato d\u2019el perro"), [APOSTROPHE]),
        (("the dog's cat", "el gato d'el perro"), [APOSTROPHE]),
        (("the dog's cat", "el gato d\u2019el perro"), []),
    ],
)
def test_traits_beside_other_pairs(pair, expected):
    *_, last = pairs = numbered([*CORPUS, pair])
    assert [trait for marked, trait in traits(pairs) if marked is last] == expected


def test_vowel_signs_distinguish_words():
    pairs = numbered([("\u0915\u093f", "a"), ("\u0915\u0940", "a"), ("\u0915\u0940.", "A")])
    assert [pair.number for pair, trait in traits(pairs) if trait == NEAR_DUPLICATE] == [3]


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.tsv"
    path.write_text("".join("\t".join(pair) + "\n" for pair in PAIRS))
    return ParallelText(path)


def test_report(corpus, tmp_path):
    report = clean_files(corpus, tmp_path / "clean.tsv", report_file=tmp_path / "report.json")
    assert (report.valid, report.inspected) == (35, 35)
    assert report.traits == {ONE_WORD: 4, NEAR_DUPLICATE: 1, RARE_CHARACTER: 3}
    lines = str(report).splitlines()
    assert "  Of 35 kept pairs, look at those with" in lines
    assert f"  {ONE_WORD:46}           4   11.43%  line 31: dog ||| perro" in lines
    content = json.loads((tmp_path / "report.json").read_text())
    assert (content["inspected"], content["traits"]) == (35, report.traits)
    assert [example["line"] for example in content["examples"][ONE_WORD]] == [31, 32, 33]


def test_only_the_first_pairs_are_inspected(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr(cleaning, "INSPECTED_PAIRS", 32)
    report = clean_files(corpus, tmp_path / "clean.tsv", split=(1,))
    assert (report.valid, report.inspected, report.traits[ONE_WORD]) == (35, 32, 2)
