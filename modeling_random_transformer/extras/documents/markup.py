"""Splits HTML into blocks of text with inline elements, and inserts the elements into translations.

A block is a unit of text, such as a paragraph or a table cell. All markup outside of blocks is copied. Inline elements
are placed by word alignments. A translated word gets the elements of the source words that it translates. An element
whose words are separated in the translation is therefore repeated.
"""

import html
import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...base.placeholders import PLACEHOLDER
from ...tokenization_random_transformer import has_letters
from ..pairs.placement import CLOSING, Unit, belongs_to_word, beside, last_units

# Comments and tags by the HTML standard. Linear in the length of any text: all repetitions are possessive, and markup
# that is not closed ends with the text.
MARKUP = re.compile(
    r"""<!--(?:-?>|.*?(?:--!?>|\Z)) | <(?:[!?]|/(?![a-zA-Z]|\Z))[^>]*+(?:>|\Z)
    | <(?P<slash>/?)(?P<name>[a-zA-Z][^ \t\n\r\f/>]*+)
      (?:[^=>]++|=[ \t\n\r\f]*+(?:"[^"]*+"|'[^']*+'|[^ \t\n\r\f>"'][^ \t\n\r\f>]*+)?+)*+(?:>|\Z)""",
    re.VERBOSE | re.DOTALL,
)
ATTRIBUTE = re.compile(
    r"""([^ \t\n\r\f/>=]++)(?:[ \t\n\r\f]*+=[ \t\n\r\f]*+(?:"([^"]*+)"|'([^']*+)'|([^ \t\n\r\f>]*+)))?+"""
)
# What decides where a script ends: in a comment, another script may begin and end.
SCRIPT_MARK = re.compile(r"(?i)<!--(?!-?>)|-->|</?script(?=[ \t\n\r\f/>])")
ENTITY = re.compile(r"&(?:#\w+|\w+);?")
WHITE_SPACE = re.compile(r"[ \t\n\r\f]+")
LEADING = re.compile(r"(?:\s|&nbsp;|&#160;)*+")
TRAILING = re.compile(r"(?<!\s)(?<!&nbsp;)(?<!&#160;)(?:\s|&nbsp;|&#160;)*+\Z")
RAW = {"script", "style", "textarea", "title", "xmp", "iframe", "noembed", "noframes"}  # contain no markup
COPIED = {*RAW, "code", "kbd", "samp", "svg", "math", "template", "object", "canvas", "audio", "video"} - {"title"}
FOREIGN = {"svg", "math"}  # elements that can be self-closing
END_OMITTED = {"p", "li", "dt", "dd", "tr", "td", "th", "option"}  # the next one ends them
INLINE = {
    *("a", "abbr", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "img", "ins"),
    *("kbd", "label", "mark", "math", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "svg"),
    *("time", "tt", "u", "var", "wbr", "script"),
}
MAX_NOTE = 500  # characters of a footnote's mark with its tags
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


Path = list[Inline]  # elements, of which each contains the next, from the root


@dataclass
class Block:
    """A text and its inline elements.

    Attributes:
        text: the text with decoded entities; white space is one space.
        root: the tree of the elements.
        spelling: the entity of each character that is written as an entity.
    """

    text: str = ""
    root: Inline = field(default_factory=lambda: Inline("", "", 0, 0))
    spelling: dict[str, str] = field(default_factory=dict)

    def escape(self, text: str) -> str:
        """A text as HTML."""
        return "".join(self.spelling.get(character) or html.escape(character, quote=False) for character in text)


# From HTML to blocks


class Token(NamedTuple):
    """A part of a document.

    Attributes:
        kind: `"text"`, `"open"`, `"close"`, or `"point"` for something without text.
        name: name of the element in lower case; `""` for a text, a comment and a placeholder.
        raw: its characters.
        end: index after its last character in the document; 0 if it is not used.
    """

    kind: str
    name: str
    raw: str
    end: int = 0

    @property
    def start(self) -> int:
        """Index of its first character in the document."""
        return self.end - len(self.raw)

    @property
    def is_copied(self) -> bool:
        """Whether it begins an element that is not translated."""
        if self.kind != "open":
            return False
        if self.name in COPIED:
            return True
        attributes = {"translate": "", "class": ""}
        for name, *values in reversed(ATTRIBUTE.findall(self.raw)):  # the first of several values is valid
            attributes[name.lower()] = html.unescape("".join(values))
        return attributes["translate"].lower() == "no" or "notranslate" in attributes["class"].split()


def parse(document: str) -> list[str | Block]:
    """The markup that is copied, and the blocks, in the order of the document."""
    parts: list[str | Block] = []
    inline: list[Token] = []
    preformatted = 0  # elements `pre`, in which each line is a block
    for token in tokens(document):
        if token.kind == "text" and preformatted:
            for line in re.split(r"(\r\n?|\n)", token.raw):
                if line.strip("\r\n"):
                    inline.append(Token("text", "", line))
                else:
                    parts += [*blocks(inline), line]
                    inline = []
        elif token.kind == "text" or token.name in INLINE or not token.name:
            inline.append(token)
        else:
            parts += [*blocks(inline), token.raw]
            inline = []
            if token.name == "pre":
                preformatted = preformatted + 1 if token.kind == "open" else max(0, preformatted - 1)
    return [*parts, *blocks(inline)]


def tokens(document: str) -> Iterator[Token]:
    """The parts of a document. An element that is copied is one of them, with all that it contains."""
    position = 0
    while tag := next_tag(document, position):
        yield from text_tokens(document[position : tag.start])
        position = tag.end
        if tag.is_copied or is_note(document, tag):
            position = end_of_element(document, tag)
            tag = Token("point", tag.name, document[tag.start : position])
        yield tag
        if tag.name == "title" and tag.kind == "open":
            end = end_of_raw(document, tag)
            yield from text_tokens(document[position:end])
            position = end
    yield from text_tokens(document[position:])


def is_note(document: str, tag: Token) -> bool:
    """Whether a tag begins a mark behind a word, such as the number of a footnote or an exponent.

    A longer element than `MAX_NOTE` is none, since reading each to its end would not take linear time.
    """
    if tag.kind != "open" or tag.name not in ("sub", "sup"):
        return False
    text = document[tag.start : tag.start + MAX_NOTE]
    end = end_of_element(text, tag._replace(end=len(tag.raw)))
    if end == MAX_NOTE:
        return False
    content = html.unescape(MARKUP.sub("", text[:end]))
    return not has_letters(content) and not text[end : end + 1].isalnum()


def text_tokens(raw: str) -> Iterator[Token]:
    """The parts of a text without markup: each placeholder is one of them."""
    position = 0
    for match in PLACEHOLDER.finditer(raw):
        if match.start() > position:
            yield Token("text", "", raw[position : match.start()])
        yield Token("point", "", match[0])
        position = match.end()
    if position < len(raw):
        yield Token("text", "", raw[position:])


def next_tag(document: str, position: int) -> Token | None:
    """The first tag or comment from a position."""
    match = MARKUP.search(document, position)
    if match is None:
        return None
    raw = match[0]
    name = (match["name"] or "").lower()
    kind = "close" if match["slash"] else "open"
    if not name or name in VOID:
        kind = "point"
    if name in FOREIGN and raw.endswith("/>"):
        kind = "point"
    return Token(kind, name, raw, match.end())


def end_of_element(document: str, first: Token) -> int:
    """The index after the end tag of an element, or before the markup that ends an element without an end tag."""
    if first.name in RAW:
        end_tag = next_tag(document, end_of_raw(document, first))
        return end_tag.end if end_tag else len(document)
    opened: list[str] = []
    counts: Counter[str] = Counter()  # numbers of open elements by name
    opened_blocks = 0
    position = first.end
    while tag := next_tag(document, position):
        position = tag.end
        if tag.kind == "open":
            is_next = tag.name == first.name and not opened_blocks
            if is_next and tag.name in END_OMITTED:
                return tag.start
            if tag.name in RAW:
                position = end_of_raw(document, tag)
            opened.append(tag.name)
            counts[tag.name] += 1
            opened_blocks += tag.name not in INLINE
        elif tag.kind == "close" and counts[tag.name]:
            name = ""
            while name != tag.name:
                name = opened.pop()
                counts[name] -= 1
                opened_blocks -= name not in INLINE
        elif tag.kind == "close" and tag.name == first.name:
            return tag.end
        elif tag.kind == "close" and tag.name not in INLINE:  # ends an element around this one
            return tag.start
    return len(document)


def end_of_raw(document: str, first: Token) -> int:
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


def blocks(inline: list[Token]) -> Iterator[str | Block]:
    """A block, and the surrounding markup and white space, which are copied. All is copied if it has no letters."""
    if not any(token.kind == "text" and has_letters(html.unescape(token.raw)) for token in inline):
        yield raw_of(inline)
        return
    inside = []
    for number, token in enumerate(inline):
        if token.kind != "point" and TRAILING.sub("", token.raw):
            inside.append(number)
    first = inside[0]
    end = inside[-1] + 1
    tokens = inline[first:end]
    raw = tokens[0].raw
    leading = LEADING.match(raw)[0]  # type: ignore[index]
    tokens[0] = tokens[0]._replace(raw=raw.removeprefix(leading))
    raw = tokens[-1].raw
    trailing = TRAILING.search(raw)[0]  # type: ignore[index]
    tokens[-1] = tokens[-1]._replace(raw=raw.removesuffix(trailing))
    yield raw_of(inline[:first]) + leading
    yield build_block(tokens)
    yield trailing + raw_of(inline[end:])


def raw_of(tokens: Sequence[Token]) -> str:
    """The characters of adjacent parts of a document."""
    return "".join(token.raw for token in tokens)


def build_block(inline: Sequence[Token]) -> Block:
    """The text of a block and the tree of its elements."""
    block = Block()
    opened = [block.root]
    missing = 0  # start tags
    for kind, name, raw, _ in inline:
        here = len(block.text)
        innermost = opened[-1]
        if kind == "text":
            append_text(block, raw, innermost)
        elif kind == "point" or len(opened) + missing > DEEPEST:
            innermost.children.append(Inline(raw, "", here, here))
        elif kind == "open":
            opened.append(Inline(raw, "", here, here, name))
            innermost.children.append(opened[-1])
        elif any(element.name == name for element in opened):
            while opened[-1].name != name:
                opened.pop().end = here
            element = opened.pop()
            element.closing = raw
            element.end = here
        else:
            missing += 1
            innermost.children = [Inline("", raw, innermost.start, here, children=innermost.children)]
    for element in opened:
        element.end = len(block.text)
    move_space(block, block.root)
    return block


def move_space(block: Block, element: Inline) -> None:
    """If an element ends with a space and an element without text, such as an image, move the space into the latter."""
    here = len(block.text)
    if not block.text[-1:].isspace() or element.start >= here:
        return
    inner = list(ending_at(element, here))
    without_text = [inline for inline in inner if inline.start == here]
    if without_text:
        block.text = block.text[:-1]
        first = without_text[-1]
        first.opening = f" {first.opening}"
        for inline in (element, *inner):
            inline.start = min(inline.start, here - 1)
            inline.end = min(inline.end, here - 1)


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
        character = html.unescape(entity)
        is_plain = character.isascii() and character.isalnum()
        if len(character) == 1 and not is_plain and character != " ":
            block.spelling.setdefault(character, entity)
    text = WHITE_SPACE.sub(" ", html.unescape(raw))
    if text[:1] in CLOSING:
        move_space(block, parent)
    elif text.startswith(" ") and parent.children:
        move_space(block, parent.children[-1])
    here = len(block.text)
    is_repeated = text[:1].isspace() and block.text[-1:].isspace()  # non-breaking spaces are spaces, too
    if is_repeated or (text.startswith(" ") and not here):
        text = text[1:]
        points = [child for child in parent.children[-2:] if child.start == here]
        if points:
            points[-1].closing += " "
        elif not here:  # something before the block, such as an image, may precede the space
            parent.opening += " "
    block.text += text


# From blocks to HTML


def needs_alignment(block: Block) -> bool:
    """Whether the places of the elements depend on the words; false if all are around or beside the whole text."""
    end = len(block.text)
    for element in descendants(block.root):
        is_at_end = element.start == end
        is_at_beginning = element.start == 0 and element.end in (0, end)
        if not (is_at_end or is_at_beginning):
            return True
    return False


def descendants(element: Inline) -> Iterator[Inline]:
    for child in element.children:
        yield child
        yield from descendants(child)


class Renderer:
    """Writes the HTML of a translated block word by word.

    Between two words, the elements of the first word are closed, and the elements of the second word are opened.
    Elements without words are also written there, outside of the elements that they are not part of.

    Args:
        block: the block.
        translation: the translation of its text.
        units: the words of the translation.
    """

    def __init__(self, block: Block, translation: str, units: Sequence[Unit]):
        paths = [[block.root, *path_of(unit, block.root)] for unit in units]
        end = Unit(len(translation), len(translation), (0, 0))
        self.block = block
        self.translation = translation
        self.units = [*units, end]
        self.paths = [*paths, [block.root]]
        self.unplaced = unplaced_before(units, paths, block)
        self.last_words = {id(element): number for number, path in enumerate(paths) for element in path}
        self.parts = [""]
        self.opened: Path = []
        self.written: set[int] = set()  # elements whose start tag is written

    def render(self) -> str:
        """The HTML."""
        position = 0
        for number, unit in enumerate(self.units):
            word = self.translation[unit.start : unit.end]
            self.write_markup(number, self.translation[position : unit.start], word)
            self.write(self.block.escape(word))
            position = unit.end
        return "".join(self.parts)

    def write(self, text: str) -> None:
        """Append a text to the HTML."""
        if text:
            self.parts.append(text)

    def write_markup(self, number: int, space: str, word: str) -> None:
        """Write the space and the markup between the previous word and the word with this number."""
        path = self.paths[number]
        common = shared(self.opened, path)
        in_closed: dict[int, str] = defaultdict(str)  # elements without words, by the number of elements around them
        in_opened: dict[int, str] = defaultdict(str)
        behind_word = ""
        for element, ancestors, belongs_to_previous in self.unplaced[number]:
            depth = shared(ancestors, self.opened)
            if depth > common:
                in_closed[depth] += flat(element)
            elif belongs_to_previous:
                behind_word += flat(element)
            else:
                depth = shared(ancestors, path)
                in_opened[depth] += flat(element)
        for depth in range(len(self.opened), common, -1):
            self.write(in_closed[depth])
            self.close(self.opened[depth - 1], number)
        if behind_word:
            self.write(beside(self.parts[-1], behind_word, " "))
        self.write(self.block.escape(space))
        for depth in range(common, len(path) + 1):
            self.write(beside(self.parts[-1], in_opened[depth], word))
            if depth < len(path):
                self.open(path[depth])
        outer = "".join(in_opened[depth] for depth in range(common))
        self.write(beside(self.parts[-1], outer, word))
        self.opened = path

    def close(self, element: Inline, number: int) -> None:
        """Write the end tag of an element before a word. An end tag without a start tag is written once."""
        if element.opening or self.last_words[id(element)] == number - 1:
            self.write(element.closing)

    def open(self, element: Inline) -> None:
        """Write the start tag of an element. A start tag without an end tag is written once."""
        if element.closing or id(element) not in self.written:
            self.write(element.opening)
            self.written.add(id(element))


def path_of(unit: Unit, element: Inline) -> Iterator[Inline]:
    """The elements within an element that contain the source of a word, or a part of it."""
    start, end = unit.source
    children = element.children
    index = bisect_right(children, start, key=lambda child: child.end)
    while index < len(children) and children[index].start < end:
        child = children[index]
        if child.end > child.start:
            yield child
            yield from path_of(unit, child)
            return
        index += 1


def unplaced_before(
    units: Sequence[Unit], paths: Sequence[Path], block: Block
) -> list[list[tuple[Inline, Path, bool]]]:
    """The elements without words, by the word before which they are placed; the end is the last.

    Each has its ancestors, and whether it is directly behind the previous word.
    """
    words: dict[int, list[int]] = defaultdict(list)  # words of each element, in the order of their sources
    for number in sorted(range(len(units)), key=lambda number: units[number].source):
        for element in paths[number]:
            words[id(element)].append(number)
    last = last_units(units)
    before: list[list[tuple[Inline, Path, bool]]] = [[] for _ in range(len(units) + 1)]
    for element, ancestors in unplaced(block.root, [block.root], words.keys()):
        parent = ancestors[-1]
        in_parent = words.get(id(parent), [])
        step = -1
        if not in_parent or element.start >= parent.end:
            index = max(in_parent, default=len(units) - 1) + 1
        elif element.start <= parent.start:
            index = min(in_parent)
        elif element.start in last and belongs_to_word(block.text, element.start):
            index = last[element.start] + 1
            step = 1
        else:
            following = bisect_left(in_parent, element.start, key=lambda number: units[number].source[0])
            index = in_parent[-1] + 1
            if following < len(in_parent):
                index = in_parent[following]
        while 0 < index < len(units) and shared(paths[index - 1], paths[index]) > len(ancestors):
            index += step  # never within another element
        before[index].append((element, ancestors, step == 1))
    return before


def unplaced(element: Inline, ancestors: Path, placed: Container[int]) -> Iterator[tuple[Inline, Path]]:
    """The elements without words, and their ancestors with words."""
    for child in element.children:
        if id(child) in placed:
            yield from unplaced(child, [*ancestors, child], placed)
        else:
            yield child, ancestors


def shared(first: Path, second: Path) -> int:
    """The number of elements at the beginning of both paths."""
    count = 0
    for one, other in zip(first, second, strict=False):
        if one is not other:
            break
        count += 1
    return count


def flat(element: Inline) -> str:
    """The HTML of an element without words."""
    return element.opening + "".join(map(flat, element.children)) + element.closing
