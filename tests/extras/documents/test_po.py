"""Message catalogs: only messages without a translation change, and gettext reads the result."""

import shutil
import subprocess

import pytest

from modeling_random_transformer.extras.documents import po, translate_po

polib = pytest.importorskip("polib")
PO = r"""# Translators of the demo
msgid ""
msgstr ""
"Project-Id-Version: demo\n"
"Language: es\n"
"MIME-Version: 1.0\n"
"Content-Type: text/plain; charset=CHARSET\n"
"Content-Transfer-Encoding: 8bit\n"
"Plural-Forms: nplurals=3; plural=n%10;\n"

#. a comment
#: a.c:1 b.c:2
#, c-format
msgid "%s sees <b>the girl</b> & 5 < 6\n"
msgstr ""

msgctxt "menu"
msgid "the boy"
msgstr ""

msgid "one horse"
msgid_plural "%d horses"
msgstr[0] ""
msgstr[1] ""

msgid "done"
msgstr "hecho"

#, fuzzy
#| msgid "old"
msgid "new"
msgstr "viejo"

#~ msgid "obsolete"
#~ msgstr "obsoleto"
"""


@pytest.fixture
def translated(monkeypatch):
    """The catalog, whose texts a model without errors would put in upper case."""
    monkeypatch.setattr(po, "translate_plain", lambda texts, *_, **__: [text.upper() for text in texts])
    return translate_po(PO, None, None)


def test_only_messages_without_translation_change(translated):
    catalog = polib.pofile(translated)
    texts = {entry.msgid: entry.msgstr or entry.msgstr_plural for entry in catalog}
    assert texts == {
        "%s sees <b>the girl</b> & 5 < 6\n": "%S SEES <B>THE GIRL</B> & 5 < 6\n",
        "the boy": "THE BOY",
        "one horse": {0: "ONE HORSE", 1: "%D HORSES", 2: "%D HORSES"},
        "done": "hecho",
        "new": "viejo",
        "obsolete": "obsoleto",
    }
    assert [entry.msgid for entry in catalog if not entry.fuzzy] == ["done", "obsolete"]
    assert catalog[0].flags == ["c-format", "fuzzy"]
    assert catalog.metadata["Content-Type"] == "text/plain; charset=UTF-8"
    kept = [line for line in PO.splitlines() if not line.startswith("msgstr") and "CHARSET" not in line]
    assert {*kept} - {*translated.splitlines()} == {"#, c-format"}
    assert translate_po(translated, None, None) == translated


@pytest.mark.skipif(shutil.which("msgfmt") is None, reason="gettext is not installed")
def test_gettext_reads_the_result(translated, tmp_path):
    (tmp_path / "a.po").write_text(translated, encoding="utf-8")
    command = ["msgfmt", "--check-format", "-o", str(tmp_path / "a.mo"), str(tmp_path / "a.po")]
    subprocess.run(command, check=True)


def test_other_line_breaks_in_a_message_stay(monkeypatch, tmp_path):
    monkeypatch.setattr(po, "translate_plain", lambda texts, *_, **__: [text.upper() for text in texts])
    document = translate_po('\ufeffmsgid "one\u2028two\x85\x0cthree"\nmsgstr ""\n', None, None)
    (tmp_path / "a.po").write_text(document, encoding="utf-8")  # of a string, polib would break the lines
    [entry] = polib.pofile(str(tmp_path / "a.po"))
    assert entry.msgstr == "ONE\u2028TWO\x85\x0cTHREE"


def test_message_without_a_text(monkeypatch):
    monkeypatch.setattr(po, "translate_plain", lambda texts, *_, **__: [text.upper() for text in texts])
    document = 'msgid ""\nmsgstr ""\n\nmsgctxt "a"\nmsgid ""\nmsgstr ""\n\nmsgid "one"\nmsgstr ""\n'
    assert [entry.msgstr for entry in polib.pofile(translate_po(document, None, None))] == ["", "ONE"]


@pytest.mark.parametrize(
    ("flag", "texts"),
    [
        ("qt-format", ["{%1} of {%L2}, {%n} books"]),
        ("kde-format", ["{%1} of {%L2}, {%n} books"]),
        ("c-format", ["%1 of %L2, %n books"]),
    ],
)
def test_flags_of_placeholders(flag, texts, monkeypatch):
    translated = []
    monkeypatch.setattr(po, "translate_plain", lambda sources, *_, **__: translated.extend(sources) or translated)
    document = translate_po(f'#, {flag}\nmsgid "%1 of %L2, %n books"\nmsgstr ""\n', None, None)
    assert translated == texts
    assert 'msgstr "%1 of %L2, %n books"' in document


@pytest.mark.parametrize("text", ['msgid "the boy', 'msgid "the boy\\"', 'msgid ""\n"the boy'])
def test_texts_without_a_second_quote_are_errors(text):
    with pytest.raises(ValueError, match=r"the document must be PO with texts in quotes, got '.*the boy"):
        translate_po(f'# a "comment\n{text}\nmsgstr ""\n', None, None)


@pytest.mark.parametrize("text", ["C:\\\\", "\\n" * 1000], ids=["backslash at the end", "many escapes"])
def test_texts_with_escapes_have_their_second_quote(text, monkeypatch):
    monkeypatch.setattr(po, "translate_plain", lambda texts, *_, **__: [*texts])
    [message] = polib.pofile(translate_po(f'msgid "{text}"\nmsgstr ""\n', None, None))
    assert message.msgstr == message.msgid == polib.unescape(text)


@pytest.mark.parametrize("escape", [r"\a", r"\101", r"\x41", r"C:\Users", r"\\\'"])
def test_escapes_that_polib_does_not_know_are_errors(escape):
    with pytest.raises(ValueError, match=r"the document must be PO with the escapes .*, got .*"):
        translate_po(f'# {escape}\nmsgid "one {escape} two"\nmsgstr ""\n', None, None)


def test_known_escapes_and_those_of_comments_stay(monkeypatch):
    monkeypatch.setattr(po, "translate_plain", lambda texts, *_, **__: [*texts])
    text = r'"a\\b \"c\" \t"'
    translated = translate_po(f'# C:\\Users\nmsgid {text}\nmsgstr ""\n', None, None)
    assert "# C:\\Users\n" in translated
    assert f"msgid {text}\nmsgstr {text}\n" in translated


def test_a_message_is_marked_once(monkeypatch):
    monkeypatch.setattr(po, "translate_plain", lambda texts, *_, **__: [*texts])
    [message] = polib.pofile(translate_po('#, fuzzy\nmsgid "one"\nmsgstr ""\n', None, None))
    assert message.flags == ["fuzzy"]


@pytest.mark.parametrize("document", ["the boy", 'msgid "a"\nmsgstr[x] ""', "/etc/passwd"])
def test_other_documents_are_errors(document):
    with pytest.raises(ValueError, match=r"the document must be PO: "):
        translate_po(document, None, None)


def test_model_keeps_placeholders_and_line_breaks(translator, tokenizer):
    [message, *_] = polib.pofile(translate_po(PO, translator, tokenizer))
    assert message.msgstr.endswith("\n")
    assert message.msgstr.count("%s") == 1
    assert "<b>" in message.msgstr
    assert "&lt;" not in message.msgstr
