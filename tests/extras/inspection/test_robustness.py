"""Disturbed test sets: of the report, and of `python -m benchmarks robustness`."""

import unicodedata

from benchmarks.robustness import share_of_copies
from modeling_random_transformer import RandomTransformerTokenizer
from modeling_random_transformer.extras.inspection.robustness import INVISIBLE_CHARACTERS, disturbances

PAIRS = [("A café.", "Ein Café."), ("Two cats sleep.", "Zwei Katzen schlafen.")]


def test_disturbances_change_sources_and_references_that_follow_them():
    tokenizer = RandomTransformerTokenizer.train(["a"], vocab_size=270)
    disturbed = disturbances(PAIRS, tokenizer)
    assert disturbed["capitals"][0] == ("A CAFÉ.", "EIN CAFÉ.")
    assert disturbed["lower case"][1] == ("two cats sleep.", PAIRS[1][1])
    assert disturbed["NFD"][0] == (unicodedata.normalize("NFD", PAIRS[0][0]), PAIRS[0][1])
    assert sum(character in INVISIBLE_CHARACTERS for character in disturbed["invisible characters"][1][0]) == 3
    for name in ("with a number", "with a placeholder"):
        references = [reference for _, reference in disturbed[name]]
        assert share_of_copies(name, disturbed[name], references) == 1
        assert share_of_copies(name, disturbed[name], [reference for _, reference in PAIRS]) == 0


def test_some_spaces_are_doubled_or_missing():
    text = "a " * 2000
    [(source, reference)] = disturbances([(text, text)], RandomTransformerTokenizer.train(["a"], vocab_size=270))[
        "10% doubled or missing spaces"
    ]
    assert source.split("a").count("  ") > 50 < source.split("a")[1:].count("")
    assert source.replace(" ", "") == text.replace(" ", "")
    assert reference == text
