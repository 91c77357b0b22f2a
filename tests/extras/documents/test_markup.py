"""HTML as blocks of text, and back: markup that stays unchanged."""

import random
import re
import sys
from collections import Counter

import pytest

from modeling_random_transformer.extras.documents.markup import DEEPEST, INLINE, Block, Renderer, parse, tokens
from modeling_random_transformer.extras.pairs.placement import Unit, linked_units


def identity(document: str) -> str:
    """The document, of which each text is translated by itself."""
    parts = []
    for part in parse(document):
        if isinstance(part, Block):
            part = Renderer(part, part.text, linked_units(part.text, part.text, None)).render()
        parts.append(part)
    return "".join(parts)


def tags(document: str) -> Counter:
    return Counter(token.raw.strip() for token in tokens(document) if token.kind != "text")


def words(document: str) -> list[str]:
    """The words and punctuation marks that a reader sees; inline elements do not separate them."""
    parts = []
    for token in tokens(document):
        separates = token.name and token.name not in INLINE
        parts.append(token.raw if token.kind == "text" else "¶" * bool(separates))
    return re.findall(r"\w+|[^\w\s]", "".join(parts))


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("<b>Press <kbd>F1</kbd></b> to get help.", "Press to get help."),
        ("<a href=x>Read <code>foo</code></a>, then go.", "Read, then go."),
        ("<i><a>see <img></a></i> for details", "see for details"),
        ("<p>First <b>use <code>x</code></b></p>", "First use"),
        ("<b>a <code>x</code> </b>, b", "a, b"),
        ("Press <b><kbd>F1</kbd> now</b> please.", "Press now please."),
        ("<b>Use <code>x</code> and <i>then <img><img></i></b> both.", "Use and then both."),
        ("see <b>{name}</b> now", "see now"),
        ("<a href=x><b>%s</b></a> is here", "is here"),
    ],
)
def test_spaces_beside_something_without_text(document, text):
    assert [part.text for part in parse(document) if isinstance(part, Block)] == [text]
    assert identity(document) == document


@pytest.mark.parametrize(
    "document",
    [
        "one<img> two",
        "one <b>two</b><a href=x><img></a> three",
        "the v{version} is out",
        "see page/{x}<!-- a --> now",
        "H<sub>2</sub>O and x<sup>2</sup> in m<sup>2</sup>.",
        "one<wbr>two <b>th</b>ree f<code>x</code>four",
        '<i class="icon"></i> Save',
        "<a><i></i> <b>Save</b></a>",
        "see <i></i> two",
        "<img><b> Save</b>",
    ],
)
def test_spaces_and_parts_of_words_stay(document):
    assert identity(document) == document


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ("The cats<sup>1</sup> sleep.<sup><a href=#n>[2]</a></sup>", "The cats sleep."),
        ("20 m<sup>2</sup>, x<sub>&#49;</sub> and y<sup><code>n</code></sup>", "20 m, x and y"),
        ("H<sub>2</sub>O at the 4<sup>th</sup> try", "H2O at the 4th try"),
    ],
)
def test_footnotes_and_exponents_are_not_a_part_of_the_text(document, text):
    """The word with its footnote, "cats1", would be another word."""
    assert [part.text for part in parse(document) if isinstance(part, Block)] == [text]
    assert identity(document) == document


def test_an_element_without_an_end_is_no_footnote():
    """Each would be read to the end of the document."""
    document = "a <sup>1 " * 200 + "end"
    assert identity(document) == document
    assert Counter(token.kind for token in tokens(document)) == {"text": 201, "open": 200}


def test_a_space_that_is_written_as_an_entity_is_a_space():
    assert identity("a&#32;red car &nbsp; b") == "a red car &nbsp; b"


def test_an_element_behind_a_word_is_behind_its_translation():
    [block] = [part for part in parse("the red<img> car<wbr> is") if isinstance(part, Block)]
    units = linked_units(block.text, "el coche muy rojo es", [(0, 0), (2, 1), (1, 2), (1, 3), (3, 4)])
    assert Renderer(block, "el coche muy rojo es", units).render() == "el coche<wbr> muy rojo<img> es"


@pytest.mark.parametrize("seed", range(5))
def test_no_tag_is_lost(seed):
    draw = random.Random(seed)
    parts = ["<b>", "</b>", "<a href='>'>", "</a>", "<p>", "</p>", "<br>", "<img>", "<!--x-->", "<code>c</code>"]
    for _ in range(100):
        document = "".join(draw.choices([*parts, "one", "two. ", " ", "&amp;", "<i>", "</i>", ",", "\n"], k=20))
        translated = identity(document)
        assert tags(translated) == tags(document), document
        assert words(translated) == words(document), document


@pytest.mark.parametrize(
    "part", ["<b>", "</b>", "x</b>", "<b>x", "<a '", "<!--", "<script>", "<div translate=no>", "<"]
)
def test_broken_markup(part):
    document = part * 3 * DEEPEST + "x"
    translated = identity(document)
    assert translated.count("x") == document.count("x")
    assert tags(translated) == tags(document)


@pytest.mark.parametrize(
    "document", ['<p translate="no">a<p>b', "<p translate=no>a</p><p>b</p>", "<P translate=no>a<p>b</p>"]
)
def test_a_paragraph_that_is_copied_ends_before_the_next_one(document):
    assert [part.text for part in parse(document) if isinstance(part, Block)] == ["b"]
    assert identity(document) == document


STANDARD = {
    "<script>write('<script src=x>'); say('I see.');</script>I see her.": ["I see her."],
    "<script src=x />I see.</script>her": ["her"],
    "<script><!-- <script> </script> no --></script>yes": ["yes"],
    "<script><!--> <script> </script>yes": ["yes"],
    '<script>no</script x=">">yes': ["yes"],
    "<style><b></style/>yes": ["yes"],
    "<textarea><b>no</textarea >yes": ["yes"],
    "<iframe><p></iframe>yes": ["yes"],
    "<title>tom <b> jerry</title>yes": ["tom <b> jerry", "yes"],
    "<!-->yes<p>": ["yes"],
    "<!--->yes<p>": ["yes"],
    "<!-- no --!>yes": ["yes"],
    "<!-- no -- > no -->yes": ["yes"],
    "</3 no>yes": ["yes"],
    '<p title="\'>">yes': ["yes"],
    "<p title=a'b>yes<p title='>": ["yes"],
    "<p title = '>' />yes": ["yes"],
    "3 < 4 yes": ["3 < 4 yes"],
    '<p translate = "no">no</p>yes': ["yes"],
    "<p TRANSLATE='NO'>no</p>yes": ["yes"],
    '<p class="a notranslate">no</p>yes': ["yes"],
    '<p data-x=" translate=no">yes': ["yes"],
    '<p title=" class=notranslate">yes': ["yes"],
    "<p class=notranslated>yes": ["yes"],
    "<p translate=yes translate=no>yes": ["yes"],
    "<div translate=no>no<!-- </div> -->no</div>yes": ["yes"],
    '<div translate=no><p title="</div>">no</div>yes': ["yes"],
    "<div translate=no><script>'</div>'</script>no</div>yes": ["yes"],
    "<ul><li translate=no>no<li>yes</ul>yes": ["yes", "yes"],
    "<ul><li translate=no>no</ul><p>yes": ["yes"],
    "<ul><li translate=no>no<ul><li>no</ul><li>yes</ul>": ["yes"],
    "<tr><td translate=no>no<td>yes": ["yes"],
}


@pytest.mark.parametrize("document", STANDARD)
def test_markup_follows_the_standard(document):
    assert [part.text for part in parse(document) if isinstance(part, Block)] == STANDARD[document]
    assert "".join(token.raw for token in tokens(document)) == document


@pytest.mark.parametrize("part", ["a <img>, ", "a <b>c </b>, ", "a <i>b <img></i> ", "<p translate=no>", "<x =", "</p"])
def test_work_is_linear(part):
    """A quadratic algorithm would do four times the work for twice the text; a quadratic pattern, take minutes."""
    once, twice = (count_lines(part * count + "x") for count in (500, 1000))
    assert twice < 2.1 * once
    parse(part * 20_000 + "x")


def count_lines(document):
    """The number of lines of code that are executed to parse a document."""
    events = Counter()

    def trace(_frame, event, _argument):
        events[event] += 1
        return trace

    tracer = sys.gettrace()  # that of a measurement of coverage
    sys.settrace(trace)
    try:
        parse(document)
    finally:
        sys.settrace(tracer)
    return events["line"]


@pytest.mark.parametrize(
    "text", ["50% sure", "50 % of", "at 5 p.m. @ home", "a {b", "http:// is", "100%safe", "a 3} {"]
)
def test_texts_without_placeholders(text):
    assert [part.text for part in parse(text) if isinstance(part, Block)] == [text]


@pytest.mark.parametrize(
    ("document", "text", "expected"),
    [
        ("see&nbsp;{name}&nbsp;now", "see\xa0now", "see&nbsp;{name} now"),
        ("see&nbsp;{name}.", "see.", "see {name}."),
        ("see {a}&nbsp;<b>{b}</b>&nbsp;now", "see now", "see {a} <b>{b}</b> now"),
    ],
)
def test_non_breaking_spaces_beside_a_placeholder_are_spaces(document, text, expected):
    assert [part.text for part in parse(document) if isinstance(part, Block)] == [text]
    assert identity(document) == expected


@pytest.mark.parametrize("line_end", ["\n", "\r\n", "\r"])
def test_each_line_of_preformatted_text_is_a_block(line_end):
    document = f"<pre>one{line_end}{line_end}  two</pre>"
    assert [part.text for part in parse(document) if isinstance(part, Block)] == ["one", "two"]
    assert identity(document) == document


def test_a_moved_placeholder_keeps_its_space():
    [block] = [part for part in parse("see %s, now") if isinstance(part, Block)]
    units = [Unit(0, 5, (5, 8)), Unit(6, 8, (3, 4))]
    assert Renderer(block, "ahora ve", units).render() == "ahora %s ve"
