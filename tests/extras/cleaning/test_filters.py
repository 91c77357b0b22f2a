"""The filters of cleaning: what each drops and keeps, and invalid options."""

import sys

import pytest

from modeling_random_transformer.data.lengths import TOO_LONG, UNEQUAL
from modeling_random_transformer.extras.cleaning import CleaningOptions, clean_pairs, filters
from modeling_random_transformer.extras.cleaning.filters import COPY_REASON, DUPLICATE, LANGUAGE, SCRIPT_REASON

OFF = {"copies": "off", "duplicates": "off", "max_length": None, "max_length_ratio": None, "min_script_share": None}
RUSSIAN = "Собака плавает в воде."
SOURCE, TARGET = (SCRIPT_REASON.format(side=side) for side in ("source", "target"))


def reasons(pairs, **options):
    """The reason for each dropped pair, `None` for the others; all filters are off unless an option turns one on."""
    dropped = {}
    kept = clean_pairs(pairs, on_rejected=lambda line, reason: dropped.update({line.number: reason}), **OFF | options)
    numbers = {line.number for line in kept}
    assert numbers.isdisjoint(dropped)
    return [dropped.get(number) for number in range(1, len(numbers) + len(dropped) + 1)]


@pytest.mark.parametrize(
    ("source", "target", "near", "exact"),
    [
        ("A dog.", "A dog.", COPY_REASON, COPY_REASON),
        ("A dog.", "a DOG !", COPY_REASON, None),
        ("«Straße»", "strasse", COPY_REASON, None),
        ("A dog.", "A dog runs.", None, None),
        ("मेरा नाम राम है", "मेरो नाम राम हो", None, None),
        ("मेरा नाम राम है", "मेरा नाम राम है।", COPY_REASON, None),
        ("Il a peche\u0301.", "il a pech\u00e9", COPY_REASON, None),
        ("I ❤\ufe0f you", "I ❤ you", COPY_REASON, None),
        ("1985!", "1985!", None, None),
    ],
)
def test_near_and_exact_copies_are_dropped_on_request(source, target, near, exact):
    assert reasons([(source, target)], copies="near") == [near]
    assert reasons([(source, target)], copies="exact") == [exact]
    assert reasons([(source, target)]) == [None]


LENGTHS = [("a dog", "ein Hund"), ("x", "yyyyyyyyyyy"), ("a b " * 300, "a b " * 100), ("x" * 1001, "y" * 1001)]
REPEATED = [("a", "b"), ("a", "c"), ("d", "b"), ("a", "b"), ("a ", "e")]
SCRIPTS = [
    ("A dog", RUSSIAN),
    ("dog", "Pes – běží"),
    ("Hund", "Ein Hund"),
    ("A dog", "Собака A dog plays"),
    ("5", "5"),
]
LATIN = {"min_script_share": 0.5, "source_script": ["Latin"], "target_script": ["Latin"]}


@pytest.mark.parametrize(
    ("pairs", "options", "expected"),
    [
        (LENGTHS, {"max_length": 10}, [None, TOO_LONG, TOO_LONG, TOO_LONG]),
        (LENGTHS, {"max_length_ratio": 9.0}, [None, UNEQUAL, None, None]),
        (LENGTHS, {"max_length_ratio": 2.0}, [None, UNEQUAL, UNEQUAL, None]),
        (REPEATED, {"duplicates": "pair"}, [None, None, None, DUPLICATE, None]),
        (REPEATED, {"duplicates": "source"}, [None, DUPLICATE, None, DUPLICATE, None]),
        (REPEATED, {"duplicates": "target"}, [None, None, DUPLICATE, DUPLICATE, None]),
        # Only kept pairs count as earlier pairs.
        ([("x" * 20, "y"), ("x" * 20, "z" * 20)], {"max_length_ratio": 9.0, "duplicates": "source"}, [UNEQUAL, None]),
        (SCRIPTS, LATIN, [TARGET, None, None, None, None]),
        (SCRIPTS, LATIN | {"min_script_share": 0.9}, [TARGET, None, None, TARGET, None]),
        (SCRIPTS, LATIN | {"target_script": ["Cyrillic"]}, [None, TARGET, TARGET, TARGET, None]),
        (SCRIPTS, LATIN | {"source_script": ["Cyrillic"]}, [SOURCE] * 4 + [None]),
    ],
)
def test_filters(pairs, options, expected):
    assert reasons(pairs, **options) == expected


GERMAN = "Ein kleiner Hund spielt mit einem Ball im Garten hinter dem Haus."
ENGLISH = "A small dog plays with a ball in the garden behind the house."
LANGUAGES = {"source_lang": "en", "target_lang": "de"}


def test_other_languages_are_dropped_and_are_no_earlier_pairs():
    pytest.importorskip("py3langid", reason="py3langid, an optional package, is not installed")
    pairs = [(ENGLISH, GERMAN), (GERMAN, GERMAN), (ENGLISH, ENGLISH), ("Ja", "Yes"), (ENGLISH, GERMAN)]
    source, target = (LANGUAGE.format(side=side) for side in ("source", "target"))
    assert reasons(pairs, **LANGUAGES) == [None, source, target, None, None]
    assert reasons(pairs[1:], duplicates="target", **LANGUAGES) == [source, target, None, None]
    regions = {"source_lang": "EN_us", "target_lang": "de-AT"}
    assert reasons(pairs, **regions) == reasons(pairs, **LANGUAGES)
    with pytest.raises(ValueError, match=r"target_lang must be one of .*, de, .*, got 'xx'\."):
        reasons(pairs, target_lang="xx")


def test_languages_require_an_optional_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "py3langid.langid", None)
    monkeypatch.setattr(filters, "language_identifier", filters.language_identifier.__wrapped__)  # without its cache
    message = r"source_lang='en' requires py3langid: pip install 'random-transformer\[langid\]'"
    with pytest.raises(ValueError, match=message):
        reasons([], source_lang="en")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"copies": "all"}, r"copies must be one of near, exact, off, got 'all'\."),
        ({"max_length": 0}, r"max_length must be at least 1 or None, got 0\."),
        ({"max_length": "x"}, r"max_length must be at least 1 or None, got 'x'\."),
        ({"exclude": "test.tsv"}, r"exclude must be a list of files, got 'test\.tsv'\."),
        ({"min_script_share": "0.5"}, r"min_script_share must be from 0 to 1, got '0\.5'\."),
        ({"min_script_share": True}, r"min_script_share must be from 0 to 1, got True\."),
        ({"min_script_share": 50}, r"min_script_share must be from 0 to 1, got 50\."),
        (
            {"source_script": ["Latin"], "min_script_share": None},
            r"source_script must be unset without min_script_share, got \['Latin'\]",
        ),
        ({"source_script": ["Latn1"]}, r"source_script must be a list of Unicode scripts, .* got \['Latn1'\]:"),
        ({"target_script": "Latin"}, r"target_script must be a list of Unicode scripts, .* got 'Latin':"),
    ],
)
def test_invalid_option_raises_value_error(options, message):
    with pytest.raises(ValueError, match=message):
        CleaningOptions(**options)
