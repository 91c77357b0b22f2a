"""Texts with tags and entities: what is not a tag stays as it is."""

import pytest

from modeling_random_transformer.extras.documents import plain_text


@pytest.fixture(autouse=True)
def documents(monkeypatch):
    """The HTML that is translated, which here is returned unchanged."""
    documents = []

    def translate_html(texts, *_, **__):
        documents.extend(texts)
        return list(documents)

    monkeypatch.setattr(plain_text, "translate_html", translate_html)
    return documents


@pytest.mark.parametrize(
    ("text", "html"),
    [
        ("a < b & c", "a &lt; b &amp; c"),
        ("<i>a</i> &amp; b", "<i>a</i> {&amp;amp;} b"),
        ('<a href="?a=1&amp;b">{&lt;} &#8217;', '<a href="?a=1{&amp;amp;}b">{{&amp;lt;}} {&amp;#8217;}'),
        ("one\ntwo\r\n", "one\ntwo\r\n"),
        ("<3 </ <", "&lt;3 &lt;/ &lt;"),
        ("", ""),
    ],
)
def test_texts_as_html_and_back(text, html, documents):
    assert plain_text.translate_plain([text]) == [text]
    assert documents == [f"<pre>{html}</pre>"]
