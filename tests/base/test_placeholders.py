"""What counts as a placeholder in a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.base.placeholders import PLACEHOLDER

REPLACED = ("{name}", "{0}", "{{ name }}", "${name}", "%{name}", "#{name}", "{n, plural, one {x} other {y}}")
FORMATTED = ("%s", "%1$s", "%(name)s", "%-5d", "%.2f", "%05d", "%ld", "%@")
COPIED = ("https://example.org/a?b=1&c=(2)d", "www.example.org/x", "ftp://example.org", "a.b+c@example.co.uk")
PLACEHOLDERS = (*REPLACED, *FORMATTED, *COPIED)


def found(text):
    return [match[0] for match in PLACEHOLDER.finditer(text)]


@given(st.lists(st.sampled_from(PLACEHOLDERS), max_size=4), st.sampled_from([" ", ", ", " and ", "\n"]))
def test_placeholders_are_found_completely_and_in_order(placeholders, separator):
    assert found(separator.join(["see", *placeholders, "now."])) == placeholders


@pytest.mark.parametrize(
    ("text", "placeholder"),
    [
        ("Read https://example.org/x.", "https://example.org/x"),
        ("(www.example.org/x)", "www.example.org/x"),
        ("见 https://example.org/x。再见", "https://example.org/x"),
        ("Write to a.b@example.org!", "a.b@example.org"),
        ("<%s>", "%s"),
    ],
)
def test_punctuation_around_a_placeholder_is_text(text, placeholder):
    assert found(text) == [placeholder]


@pytest.mark.parametrize(
    "text",
    ["100% sure", "100 % sure", "50%d", "%discount", "%%d", "{not closed", "{not\nclosed}", "a @ b", "httpx://a"],
)
def test_what_is_no_placeholder(text):
    assert found(text) == []
