"""HTML as blocks of text with inline elements, which return to their words after the text is translated.

A block is what a reader sees as one text, such as a paragraph or a cell. All markup outside of it is copied. Inline
elements are placed by word alignments: a translated word gets the elements of the source words that it translates, so
an element whose words are separated in the translation is repeated.
"""

import html
import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from ..tokenization_random_transformer import has_letters
from .sentences import is_wide

# Comments and tags by the HTML standard. Linear in the length of any text: all repetitions are possessive, and markup
# that is not closed ends with the text.
MARKUP = re.compile(
    r"""<!--(?:-?>|.*?(?:--!?>|\Z)) | <(?:[!?]|/(?![a-zA-Z]|\Z))[^>]*+(?:>|\Z)
    | <(?P<slash>/?)(?P<name>[a-zA-Z][^ \t\n\r\f/>]*+)
      (?P<attributes>(?:[^=>]++|=[ \t\n\r\f]*+(?:"[^"]*+"|'[^']*+'|[^ \t\n\r\f>"'][^ \t\n\r\f>]*+)?+)*+)(?:>|\Z)""",
    re.VERBOSE | re.DOTALL,
)
ATTRIBUTE = re.compile(
    r"""([^ \t\n\r\f/>=]++)(?:[ \t\n\r\f]*+=[ \t\n\r\f]*+(?:"([^"]*+)"|'([^']*+)'|([^ \t\n\r\f>]*+)))?+"""
)
# What decides where a script ends: in a comment, another script may begin and end.
SCRIPT_MARK = re.compile(r"(?i)<!--(?!-?>)|-->|</?script(?=[ \t\n\r\f/>])")
# What a program replaces or a reader copies: {name}, ${name}, {{name}}, %(name)s, %s, %1$s, URLs and e-mail addresses.
PLACEHOLDER = re.compile(
    r"""\$?\{(?:[^{}\n]++|\{[^{}\n]*+\})*+\}
    | (?<![\w%])%(?:\(\w++\)|\d++\$)?[-+\#0]*+\d*+(?:\.\d++)?+(?:hh?|ll?)?[sdiufFeEgGxXocp@](?![^\W\d_])
    | (?:\b(?:https?|ftp)://|\bwww\.)[^\s<>"'\u3000-\u9fff\uff00-\uffef]*[^\s<>"'.,;:!?)\]\u3000-\u9fff\uff00-\uffef]
    | (?<![\w.+-])[\w.+-]++@[\w-]++(?:\.[\w-]++)++""",
    re.VERBOSE,
)
ENTITY = re.compile(r"&(?:#\w+|\w+);?")
SPACE = re.compile(r"[ \t\n\r\f]+")
CLOSING = (*".,;:!?)",)  # without a space before them
LEADING = re.compile(r"(?:\s|&nbsp;|&#160;)*+")
TRAILING = re.compile(r"(?<!\s)(?<!&nbsp;)(?<!&#160;)(?:\s|&nbsp;|&#160;)*+\Z")
# Chinese and Japanese characters, other words, and all other characters one by one
UNIT = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+|[^\w\s]")
RAW = {"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"}  # contain no markup
COPIED = {*RAW, "code", "kbd", "samp", "svg", "math", "template", "object", "canvas", "audio", "video"} - {"title"}
FOREIGN = {"svg", "math"}  # only these can be self-closing
END_OMITTED = {"p", "li", "dt", "dd", "tr", "td", "th", "option"}  # the next one ends them
INLINE = {
    *("a", "abbr", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "img", "ins"),
    *("kbd", "label", "mark", "math", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "svg"),
    *("time", "tt", "u", "var", "wbr", "script"),
}
DEEPEST = 32  # levels of elements in a block; tags beyond are treated as if they had no text
VOID = {"area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"}


@dataclass
class Inline:
    """An inline element of a block, or something without text, such as an image or a comment.

    Attributes:
        opening: its start tag, or all of it; `""` if the start tag is missing.
        closing: its end tag; `""` if there is none.
        start: index of its first character in the text of the block.
        end: index after its last character.
        children: the elements within it.
    """

    opening: str
    closing: str
    start: int
    end: int
    name: str = ""
    children: list["Inline"] = field(default_factory=list)


Nested = tuple[Inline, list[Inline]]  # an element and those that contain it, from the root


@dataclass
class Block:
    """A text and its inline elements.

    Attributes:
        text: the text with decoded entities; white space is one space.
        root: the tree of the elements.
        spelling: the entity of each character that is written as one.
    """

    text: str = ""
    root: Inline = field(default_factory=lambda: Inline("", "", 0, 0))
    spelling: dict[str, str] = field(default_factory=dict)

    def escape(self, text: str) -> str:
        """A text as HTML."""
        return "".join(self.spelling.get(each) or html.escape(each, quote=False) for each in text)


@dataclass(frozen=True)
class Unit:
    """A word of a translation.

    Attributes:
        start: index of its first character in the translation.
        end: index after its last character.
        sources: the spans of the source words that it may translate, with weights.
    """

    start: int
    end: int
    sources: Sequence[tuple[tuple[int, int], float]]


def unit_spans(text: str) -> list[tuple[int, int]]:
    """The spans of the words of a text, including combining marks, and of its punctuation marks."""
    spans: list[tuple[int, int]] = []
    for start, end in (found.span() for found in UNIT.finditer(text)):
        first, before = text[start], text[start - 1]
        inside = is_mark(first) or (is_mark(before) and first.isalnum() and not is_wide(first))
        if spans and spans[-1][1] == start and inside:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((start, end))
    return spans


def is_mark(character: str) -> bool:
    """Whether a character is a combining mark."""
    return unicodedata.category(character).startswith("M")


# From HTML to blocks


def parse(document: str) -> list[str | Block]:
    """The markup that is copied, and the blocks, in the order of the document."""
    parts: list[str | Block] = []
    inline: list[tuple[str, str, str]] = []
    preformatted = 0
    for kind, name, raw in tokens(document):
        if kind == "text" and preformatted:
            for line in re.split(r"(\r?\n)", raw):
                if line.strip("\r\n"):
                    inline.append(("text", "", line))
                else:
                    parts += [*blocks(inline), line]
                    inline = []
        elif kind == "text" or name in INLINE or not name:
            inline.append((kind, name, raw))
        else:
            parts += [*blocks(inline), raw]
            inline = []
            if name == "pre":
                preformatted = max(0, preformatted + (1 if kind == "open" else -1))
    return [*parts, *blocks(inline)]


@dataclass(frozen=True)
class Tag:
    """A tag, a comment, or an element whose content is not markup.

    Attributes:
        kind: `"open"`, `"close"` or `"point"`.
        name: name of the element in lower case; `""` for a comment.
        attributes: the characters between the name and the end of the tag.
        start: index of its first character in the document.
        end: index after its last character.
    """

    kind: str
    name: str
    attributes: str
    start: int
    end: int

    @property
    def is_copied(self) -> bool:
        """Whether it begins an element that is not translated."""
        if self.kind != "open":
            return False
        attributes: dict[str, str] = {}
        for name, *values in ATTRIBUTE.findall(self.attributes):
            attributes.setdefault(name.lower(), html.unescape("".join(values)))
        not_translated = attributes.get("translate", "").lower() == "no"
        return not_translated or self.name in COPIED or "notranslate" in attributes.get("class", "").split()


def tokens(document: str) -> Iterator[tuple[str, str, str]]:
    """The kind (`"text"`, `"open"`, `"close"` or `"point"`), the tag's name and the characters of each part.

    An element that is copied is one `"point"`, with all that it contains; so is a placeholder.
    """
    position = 0
    while tag := next_tag(document, position):
        yield from text_tokens(document[position : tag.start])
        kind, position = tag.kind, tag.end
        if tag.is_copied:
            kind, position = "point", end_of_element(document, tag)
        yield kind, tag.name, document[tag.start : position]
        if tag.name == "title" and kind == "open":
            end = end_of_raw(document, tag)
            yield from text_tokens(document[position:end])
            position = end
    yield from text_tokens(document[position:])


def text_tokens(raw: str) -> Iterator[tuple[str, str, str]]:
    """The tokens of a text without markup: each placeholder is one `"point"`."""
    position = 0
    for match in PLACEHOLDER.finditer(raw):
        if match.start() > position:
            yield "text", "", raw[position : match.start()]
        yield "point", "", match[0]
        position = match.end()
    if position < len(raw):
        yield "text", "", raw[position:]


def next_tag(document: str, position: int) -> Tag | None:
    """The first tag or comment from a position."""
    if (match := MARKUP.search(document, position)) is None:
        return None
    name = (match["name"] or "").lower()
    kind = "close" if match["slash"] else "open"
    if not name or name in VOID or (name in FOREIGN and match[0].endswith("/>")):
        kind = "point"
    return Tag(kind, name, match["attributes"] or "", *match.span())


def end_of_element(document: str, first: Tag) -> int:
    """The index after the end tag of an element, or before what ends it without an end tag."""
    if first.name in RAW:
        end_tag = next_tag(document, end_of_raw(document, first))
        return end_tag.end if end_tag else len(document)
    opened: list[str] = []
    counts: Counter[str] = Counter()  # of the opened elements, by name; those that are blocks also at ""
    position = first.end
    while tag := next_tag(document, position):
        position = tag.end
        if tag.kind == "close":
            if counts[tag.name]:
                name = ""
                while name != tag.name:
                    name = opened.pop()
                    counts.subtract({name: 1, "": name not in INLINE})
            elif tag.name == first.name:
                return tag.end
            elif tag.name not in INLINE:  # of an element around this one
                return tag.start
        elif tag.kind == "open":
            if tag.name == first.name and tag.name in END_OMITTED and not counts[""]:
                return tag.start
            if tag.name in RAW:
                position = end_of_raw(document, tag)
            opened.append(tag.name)
            counts.update({tag.name: 1, "": tag.name not in INLINE})
    return len(document)


def end_of_raw(document: str, first: Tag) -> int:
    """The index of the end tag of an element that contains no markup, or of the end of the document."""
    if first.name != "script":
        match = re.compile(rf"(?i)</{first.name}(?=[ \t\n\r\f/>])").search(document, first.end)
        return match.start() if match else len(document)
    depth = 0  # 1 in a comment, 2 in a script within a comment
    for mark in SCRIPT_MARK.finditer(document, first.end):
        match mark[0].lower():
            case "<!--":
                depth = max(depth, 1)
            case "-->":
                depth = 0
            case "<script":
                depth = 2 if depth else 0
            case _ if depth < 2:
                return mark.start()
            case _:
                depth = 1
    return len(document)


def blocks(inline: list[tuple[str, str, str]]) -> Iterator[str | Block]:
    """A block between the markup and white space that surround it; only what is copied if it has no letters."""
    if not any(kind == "text" and has_letters(html.unescape(raw)) for kind, _, raw in inline):
        yield "".join(raw for *_, raw in inline)
        return
    inline, before, after = list(inline), "", ""
    while inline[0][0] == "point" or not LEADING.sub("", inline[0][2], count=1):
        before += inline.pop(0)[2]
    while inline[-1][0] == "point" or not TRAILING.sub("", inline[-1][2]):
        after = inline.pop()[2] + after
    if inline[0][0] == "text":
        kept = LEADING.sub("", inline[0][2], count=1)
        before, inline[0] = before + inline[0][2].removesuffix(kept), ("text", "", kept)
    if inline[-1][0] == "text":
        kept = TRAILING.sub("", inline[-1][2])
        after, inline[-1] = inline[-1][2].removeprefix(kept) + after, ("text", "", kept)
    yield before
    yield build_block(inline)
    yield after


def build_block(inline: Sequence[tuple[str, str, str]]) -> Block:
    """The text of a block and the tree of its elements."""
    block = Block()
    stack, missing = [block.root], 0
    for kind, name, raw in inline:
        here = len(block.text)
        if kind == "text":
            append_text(block, raw, stack[-1])
        elif kind == "point" or len(stack) + missing > DEEPEST:
            stack[-1].children.append(Inline(raw, "", here, here))
        elif kind == "open":
            stack[-1].children.append(Inline(raw, "", here, here, name))
            stack.append(stack[-1].children[-1])
        elif name in [each.name for each in stack]:
            while stack[-1].name != name:
                stack.pop().end = here
            stack[-1].closing, stack[-1].end = raw, here
            stack.pop()
        else:  # the start tag is missing
            parent, missing = stack[-1], missing + 1
            parent.children = [Inline("", raw, parent.start, here, children=parent.children)]
    for element in stack:
        element.end = len(block.text)
    move_space(block, block.root)
    return block


def move_space(block: Block, element: Inline) -> None:
    """Move a space before something without text at the end of an element, such as an image, into it."""
    here = len(block.text)
    inner = [*ending_at(element, here)][::-1] if block.text.endswith(" ") and element.start < here else []
    if first := next((each for each in inner if each.start == here), None):
        block.text, first.opening = block.text[:-1], f" {first.opening}"
        for each in (element, *inner):
            each.start, each.end = min(each.start, here - 1), min(each.end, here - 1)


def ending_at(element: Inline, end: int) -> Iterator[Inline]:
    """The elements within an element that end at an index, from the last to the first."""
    for child in reversed(element.children):
        if child.end < end:
            return
        yield from ending_at(child, end)
        yield child


def append_text(block: Block, raw: str, parent: Inline) -> None:
    """Append a text to a block, whose white space becomes one space; something without text keeps its own."""
    for entity in ENTITY.findall(raw):
        if len(character := html.unescape(entity)) == 1 and not (character.isascii() and character.isalnum()):
            block.spelling.setdefault(character, entity)
    text = SPACE.sub(" ", html.unescape(raw))
    if text[:1] in CLOSING:
        move_space(block, parent)
    elif text.startswith(" ") and parent.children:
        move_space(block, parent.children[-1])
    here = len(block.text)
    points = [child for child in parent.children[-2:] if child.start == here]
    if block.text.endswith(" ") or not block.text:
        if points and text.startswith(" ") and not points[-1].closing:
            points[-1].opening += " "
        text = text.removeprefix(" ")
    block.text += text


# From blocks to HTML


def needs_alignment(block: Block) -> bool:
    """Whether the places of the elements depend on the words; not if they are around or beside the whole text."""
    end = len(block.text)
    around = (each.start == end or (each.start == 0 and each.end in (0, end)) for each in descendants(block.root))
    return not all(around)


def descendants(element: Inline) -> Iterator[Inline]:
    for child in element.children:
        yield child
        yield from descendants(child)


def render(block: Block, translation: str, units: Sequence[Unit]) -> str:
    """The HTML of a translated block.

    Args:
        block: the block.
        translation: the translation of its text.
        units: the words of the translation.
    """
    paths = paths_of(units, block)
    last = {id(element): number for number, path in enumerate(paths) for element in path}
    before = unplaced_before(units, paths, block)
    output, position, written = "", 0, set()
    opened: list[Inline] = []
    for number, path in enumerate([*paths, [block.root]]):
        common = shared(opened, path)
        closing, opening = (defaultdict[int, str](str) for _ in range(2))
        for point, ancestors in before[number]:
            if (depth := shared(ancestors, opened)) > common:
                closing[depth] += flat(point)
            else:
                opening[shared(ancestors, path)] += flat(point)
        for depth in range(len(opened), common, -1):
            element = opened[depth - 1]
            output += closing[depth]
            if element.opening or last[id(element)] == number - 1:
                output += element.closing
        start, end = (units[number].start, units[number].end) if number < len(units) else (len(translation),) * 2
        output += block.escape(translation[position:start])
        for depth in range(common, len(path) + 1):
            output += between(output, opening[depth], translation[start:end])
            if depth < len(path) and (path[depth].closing or id(path[depth]) not in written):
                output += path[depth].opening
                written.add(id(path[depth]))
        outer = "".join(opening[depth] for depth in range(common))
        output += between(output, outer, translation[start:end]) + block.escape(translation[start:end])
        opened, position = path, end
    return output


def between(before: str, point: str, word: str) -> str:
    """Something without text, whose space is behind it instead of before it if it is placed directly before a word."""
    if not (before.endswith(" ") and point.startswith(" ")):
        return point
    return point[1:] + " " * word[:1].isalnum()


def paths_of(units: Sequence[Unit], block: Block) -> list[list[Inline]]:
    """The elements of each word, from the root to the innermost."""
    around, whole = [], [block.root]
    while whole:
        around += whole
        whole = [child for child in around[-1].children if child.start == 0 and child.end == len(block.text)]
    return [[*around, *path_of(unit, around[-1])] for unit in units]


def path_of(unit: Unit, element: Inline) -> Iterator[Inline]:
    """The elements within an element that have at least half of the weight of a word's sources."""
    total = sum(weight for _, weight in unit.sources)
    while total:
        weights: dict[int, float] = defaultdict(float)
        for (start, end), weight in unit.sources:
            index = bisect_right(element.children, start, key=lambda child: child.end)
            while index < len(element.children) and (child := element.children[index]).start < end:
                weights[index] += weight * (child.end > child.start)
                index += 1
        best = max(weights, key=weights.__getitem__, default=None)
        if best is None or weights[best] < total / 2:
            return
        element = element.children[best]
        yield element


def unplaced_before(units: Sequence[Unit], paths: Sequence[list[Inline]], block: Block) -> list[list[Nested]]:
    """The elements that no word has, with their ancestors, by the word before which they are placed; after all last."""
    sources = [max(unit.sources, key=lambda source: source[1], default=((0, 0), 0.0))[0] for unit in units]
    words: dict[int, list[int]] = defaultdict(list)  # of each element, in the order of their sources
    for number in sorted(range(len(units)), key=sources.__getitem__):
        for element in paths[number]:
            words[id(element)].append(number)
    before: list[list[Nested]] = [[] for _ in range(len(units) + 1)]
    for element, ancestors in unplaced(block.root, [block.root], words.keys()):
        parent, allowed = ancestors[-1], words.get(id(ancestors[-1]), [])
        if not allowed or element.start >= parent.end:
            index = max(allowed, default=len(units) - 1) + 1
        elif element.start <= parent.start:
            index = min(allowed)
        else:
            following = bisect_left(allowed, element.start, key=lambda number: sources[number][0])
            index = allowed[following] if following < len(allowed) else allowed[-1] + 1
            while 0 < index < len(units) and shared(paths[index - 1], paths[index]) > len(ancestors):
                index -= 1  # not within another element
        before[index].append((element, ancestors))
    return before


def unplaced(element: Inline, ancestors: list[Inline], placed: Container[int]) -> Iterator[Nested]:
    """The elements that no word has, with their ancestors, which have words."""
    for child in element.children:
        if id(child) in placed:
            yield from unplaced(child, [*ancestors, child], placed)
        else:
            yield child, ancestors


def shared(first: Sequence[Inline], second: Sequence[Inline]) -> int:
    """The number of elements at the beginning of both paths."""
    for count, (one, other) in enumerate(zip(first, second, strict=False)):
        if one is not other:
            return count
    return min(len(first), len(second))


def flat(element: Inline) -> str:
    """An element without words."""
    return element.opening + "".join(map(flat, element.children)) + element.closing
