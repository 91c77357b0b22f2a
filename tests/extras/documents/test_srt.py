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
    assert spoken == ["<i>the boy sees the girl</i> & 5 < 6", "- the cat", "- the dog", "{name} and %s"]
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
        ("\uffff 12 <i>3</i> \uffff", 2, ["\uffff 12 <i>3</i> \uffff"]),
        ("", 2, []),
    ],
)
def test_lines_are_broken(text, max_lines, expected):
    lines = srt.broken(text, max_lines)
    assert " ".join(lines) == text.strip()
    assert len(lines) <= max_lines
    assert expected is None or lines == expected


@pytest.mark.parametrize("text", ["7\n8\n", "50%\r\n- 100%\r\n\r\n", "\n", "\u266a\n\u266a\n"])
def test_texts_without_letters_stay(text, spoken):
    document = f"1\n00:00:01,000 --> 00:00:02,000\n{text}"
    assert translate_srt(document, None, None) == document
    assert not spoken


@pytest.mark.parametrize(
    ("text", "texts", "expected"),
    [
        ("-the boy.\n\u2013the girl.\n", ["- the boy.", "\u2013 the girl."], "-THE BOY.\n\u2013THE GIRL.\n"),
        ("<i>-the boy</i>\n<i>- a</i>", ["<i>- the boy</i>", "<i>- a</i>"], "<i>-THE BOY</i>\n<i>- A</i>"),
        (r"{\1}-the boy" "\n" r"{\1}-a", [r"{\1}- the boy", r"{\1}- a"], r"{\1}-THE BOY" "\n" r"{\1}-A"),
        ("the boy sees\n-5 dogs", ["the boy sees -5 dogs"], "THE BOY SEES -5 DOGS"),
        ("♪ the boy ♪\n♪ sees\na ♪", ["♪ the boy ♪", "♪ sees a ♪"], "♪ THE BOY ♪\n♪ SEES A ♪"),
    ],
    ids=["no space", "tags", "positions", "number", "lyrics"],
)
def test_speakers(text, texts, expected, spoken):
    header = "1\n00:00:01,000 --> 00:00:02,000\n"
    assert translate_srt(header + text, None, None) == header + expected
    assert spoken == texts


def test_line_ends_of_old_macintosh_computers(spoken):
    document = SRT.replace("\n", "\r")
    assert translate_srt(document, None, None) == translate_srt(SRT, None, None).replace("\n", "\r")
    assert spoken[:2] == ["<i>the boy sees the girl</i> & 5 < 6", "- the cat"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("see https://example.org/a-long-path/that-is/longer-than-a-line now, the boy", 2),
        ("\u732b" * 100, 2),
        ("a well-known " * 5, 2),
    ],
    ids=["URL", "without spaces", "hyphens"],
)
def test_words_are_not_broken(text, lines):
    broken = srt.broken(text, lines)
    assert len(broken) == lines
    assert ("" if "\u732b" in text else " ").join(broken) == text.strip()


TIME = "1\n00:00:01,000 --> 00:00:02,000\nthe boy\n\n2\n"


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("", "have subtitles with times, 00:00:01,000 --> 00:00:02,000, got none"),
        ("the boy", "have subtitles with times, 00:00:01,000 --> 00:00:02,000, got none"),
        ("1\n00:00:01 the boy", "have subtitles with times, 00:00:01,000 --> 00:00:02,000, got none"),
        (f"{TIME}00:00:03,000 -> 00:00:04,000\na", "have subtitles with times, .* got '00:00:03,000 -> 00:00:04,000'"),
        (f"{TIME}00:03.000 --> 00:04.000\na", "have subtitles with times, .* got '00:03.000 --> 00:04.000'"),
        ("WEBVTT\n\n00:00:01.000 --> 00:00:02.000\na", "be SRT, got WebVTT"),
    ],
)
def test_other_documents_are_errors(document, message):
    with pytest.raises(ValueError, match=f"the document must {message}"):
        translate_srt(document, None, None)


def test_model(translator, tokenizer):
    translated = translate_srt(SRT, translator, tokenizer)
    assert TIMES.findall(translated) == TIMES.findall(SRT)
    assert translated.count("<i>") == translated.count("</i>") >= 1
    assert "{name}" in translated
    assert "%s" in translated
