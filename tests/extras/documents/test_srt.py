"""Subtitles: what stays, lines that are broken again, and documents that are no subtitles."""

import re

import pytest

from modeling_random_transformer.extras.documents import srt, translate_srt

SRT = """\ufeff1
00:00:01,000 --> 00:00:03,500
<i>the boy sees
the girl</i> & 5 < 6

2
00:00:04,000 --> 00:00:05,000 X1:100 X2:200
- the cat
- the dog


3
00:00:06,000 --> 00:00:07,000

4
00:00:08,000 --> 00:00:09,000
{name} and %s"""
TIMES = re.compile(r"^\d+\r?\n.*-->.*$", re.MULTILINE)


@pytest.fixture
def spoken(monkeypatch):
    """Replace the model: each text becomes upper case; returns the texts that were translated."""
    texts: list[str] = []

    def translate(fragments, *_, **__):
        texts.extend(fragments)
        return [re.sub(r"(?<!<)(?<!</)\b[a-z]+", lambda word: word[0].upper(), text) for text in texts]

    monkeypatch.setattr(srt, "translate_plain", translate)
    return texts


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_all_but_the_texts_stays(spoken, end):
    translated = translate_srt(SRT.replace("\n", end), None, None)
    assert spoken == ["<i>the boy sees the girl</i> & 5 < 6", "- the cat", "- the dog", "", "{name} and %s"]
    expected = SRT.replace("the boy sees\nthe girl", "THE BOY SEES THE GIRL").replace("the cat", "THE CAT")
    expected = expected.replace("the dog", "THE DOG").replace("{name} and %s", "{NAME} AND %S")
    assert translated.split() == expected.split()
    assert TIMES.findall(translated) == TIMES.findall(SRT.replace("\n", end))
    assert translated.count("\r") == (translated.count("\n") if end == "\r\n" else 0)


@pytest.mark.parametrize(
    ("text", "max_lines", "expected"),
    [
        ("a short line", 2, ["a short line"]),
        ("word " * 16, 2, ["word " * 7 + "word", "word " * 7 + "word"]),
        ("word " * 24, 2, ["word " * 11 + "word", "word " * 11 + "word"]),
        ("word " * 24, 3, ["word " * 7 + "word"] * 3),
        ("<i>one</i> " + "<b>word</b> " * 10, 2, None),
        ("", 2, []),
    ],
)
def test_lines_are_broken(text, max_lines, expected):
    lines = srt.broken(text, max_lines)
    assert " ".join(lines) == text.strip()
    assert len(lines) <= max_lines
    assert expected is None or lines == expected


@pytest.mark.parametrize("document", ["", "the boy", "1\n00:00:01 the boy"])
def test_other_documents_are_errors(document):
    with pytest.raises(ValueError, match=r"must have subtitles with times, 00:00:01,000 --> 00:00:02,000, got none"):
        translate_srt(document, None, None)


def test_model(translator, tokenizer):
    translated = translate_srt(SRT, translator, tokenizer)
    assert TIMES.findall(translated) == TIMES.findall(SRT)
    assert translated.count("<i>") == translated.count("</i>") >= 1
    assert "{name}" in translated
    assert "%s" in translated
