"""Normalization of texts in cleaning."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modeling_random_transformer.extras.cleaning import CleaningReport, clean_pairs
from modeling_random_transformer.extras.cleaning.normalization import normalized
from tests.helpers.scripts import sentences_by_language


@pytest.mark.parametrize(
    ("text", "expected", "kind"),
    [
        ('"He said ""no"""', 'He said "no"', "quotes of CSV"),
        ('"A quoted sentence."', '"A quoted sentence."', None),
        ('"a" and "b"', '"a" and "b"', None),
        ("a\x07b\x0cc\x85d", "ab c d", "control characters"),
        ("so\u00adft\u2060 \ufeffa\u200bb", "soft ab", "zero-width characters"),
        ("\u200dshelf\u200cful", "shelfful", "zero-width characters"),
        ("می\u200cروم", "می\u200cروم", None),
        ("ශ්\u200dරී क्\u200d", "ශ්\u200dරී क्\u200d", None),
        ("บ้าน\u200bของ ខ្ញុំ\u200bទៅ", "บ้านของ ខ្ញុំទៅ", "zero-width characters"),
        ("10\u00a0000\u2009km\u202f!", "10 000 km !", "spaces"),
        ("👩\u200d🚀 ❤️\u200d🔥 1\ufe0f\u20e3", "👩\u200d🚀 ❤️\u200d🔥 1\ufe0f\u20e3", None),
        ("co\u2011\ufb01nanced", "co-financed", "hyphens and ligatures"),
        ("e\u0301 \u212b", "é Å", "Unicode form NFC"),
        ("کِ\u200cه", "کِ\u200cه", None),
    ],
)
def test_changes_and_their_kinds(text, expected, kind):
    assert normalized(text) == (expected, [] if kind is None else [f"normalized: {kind}"])


@pytest.mark.parametrize("sentences", sentences_by_language().values(), ids=sentences_by_language())
def test_only_the_unicode_form_of_sentences_changes(sentences):
    for sentence in sentences:
        assert set(normalized(sentence)[1]) <= {"normalized: Unicode form NFC"}


@settings(max_examples=300)
@given(st.text(alphabet=st.sampled_from('a"é\u0301\u200b\u200c\u200d\x07\x0cกมी😀'), max_size=9))
def test_a_normalized_text_stays_the_same(text):
    once = normalized(text)[0]
    assert normalized(once) == (once, [])


def test_report():
    report = CleaningReport("pairs")
    pairs = [("e\u0301te", "summer"), ("\u200b", "blank"), ("\u200bété", "summer"), ("a", "e\u0301")]
    kept = [(pair.source, pair.target) for pair in clean_pairs(pairs, report=report, min_script_share=None)]
    assert kept == [("éte", "summer"), ("été", "summer"), ("a", "é")]
    assert report.normalized == {"normalized: Unicode form NFC": 2, "normalized: zero-width characters": 1}
    assert report.counts == {"with an empty source or target": 1}
    assert report.examples["normalized: Unicode form NFC"][0] == {"line": 1, "source": "e\u0301te", "target": "summer"}
    assert "normalized: zero-width characters" in str(report)
    off = clean_pairs(pairs[:1], normalization="off", min_script_share=None)
    assert [pair.source for pair in off] == ["e\u0301te"]
