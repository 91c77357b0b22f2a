"""What counts as a placeholder in a text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeling_random_transformer.base.placeholders import PLACEHOLDER

REPLACED = ("{name}", "{0}", "{{ name }}", "${name}", "%{name}", "#{name}", "{n, plural, one {x} other {y}}")
NESTED = ("{{{name}}}", "{n, plural, one {a {x}} other {{y} b}}")
RUBY = ("<%= name %>", "<% 5 % n < 3 %>", "<%=t(:a)%>")
FORMATTED = ("%s", "%1$s", "%(name)s", "%-5d", "%.2f", "%05d", "%ld", "%@", "%s%1$d", "%d%%")
COPIED = ("https://example.org/a?b=1&c=(2)d", "www.example.org/x", "ftp://example.org", "a.b+c@example.co.uk")
PARENTHESES = ("https://example.org/A_(b)", "www.example.org/f().x_(y)")
PLACEHOLDERS = (*REPLACED, *NESTED, *RUBY, *FORMATTED, *COPIED, *PARENTHESES)


def placeholders_of(text):
    return [match[0] for match in PLACEHOLDER.finditer(text)]


@given(st.lists(st.sampled_from(PLACEHOLDERS), max_size=4), st.sampled_from([" ", ", ", " and ", "\n"]))
def test_placeholders_are_found_completely_and_in_order(placeholders, separator):
    assert placeholders_of(separator.join(["see", *placeholders, "now."])) == placeholders


@pytest.mark.parametrize(
    ("text", "placeholder"),
    [
        ("Read https://example.org/x.", "https://example.org/x"),
        ("(www.example.org/x)", "www.example.org/x"),
        ("(www.example.org/x_(y)).", "www.example.org/x_(y)"),
        ("www.example.org/(x", "www.example.org/(x"),
        ("见 https://example.org/x。再见", "https://example.org/x"),
        ("Write to a.b@example.org!", "a.b@example.org"),
        ("<%s>", "%s"),
        ("“https://example.org/x”", "https://example.org/x"),
    ],
)
def test_punctuation_around_a_placeholder_is_text(text, placeholder):
    assert placeholders_of(text) == [placeholder]


@pytest.mark.parametrize(
    "text",
    [
        "100% sure",
        "100 % sure",
        "50%d",
        "%discount",
        "%%d",
        "{not closed",
        "{not\nclosed}",
        "<%= not closed",
        "a @ b",
        "httpx://a",
    ],
)
def test_texts_that_resemble_placeholders_have_none(text):
    assert placeholders_of(text) == []


# Chinese, Japanese, half-width katakana, a rare Chinese character, Thai, Lao, Khmer, Burmese: before and after.
UNSPACED_TEXTS = [
    ("写信给", "。谢谢"),
    ("写信给", "谢谢"),
    ("参见“", "”，再见"),
    ("见（", "）……"),
    ("ここは", "です"),
    ("ﾃｽﾄ", "｡"),
    ("𠮷", "𠮷"),
    ("ดู", "นะครับ"),
    ("เบิ่ง", "ແລ້ວ"),
    ("ເບິ່ງ", "ແດ່"),
    ("មើល", "ហើយ។"),
    ("ကြည့်ပါ", "မှာ။"),
]


@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
@pytest.mark.parametrize(("before", "after"), UNSPACED_TEXTS)
def test_placeholders_beside_letters_of_scripts_without_spaces(before, after, placeholder):
    assert placeholders_of(f"{before}{placeholder}{after}") == [placeholder]
    assert placeholders_of(f"{before}{placeholder}{after}{placeholder}") == [placeholder] * 2


@pytest.mark.parametrize(
    ("text", "placeholders"),
    [
        ("xhttps://example.org", []),
        ("éwww.example.org", []),
        ("жhttps://example.org", []),
        ("1https://example.org", []),
        ("_https://example.org", []),
        ("x%d", []),
        ("%dx", []),
        ("é%s", []),
        ("жa@example.org", ["жa@example.org"]),
        ("a@bücher.example", ["a@bücher.example"]),
        ("共50%d个", []),
        ("x.y+z@a-b.org", ["x.y+z@a-b.org"]),
    ],
)
def test_a_letter_of_a_script_with_spaces_belongs_to_the_word(text, placeholders):
    assert placeholders_of(text) == placeholders
