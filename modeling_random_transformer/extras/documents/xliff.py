"""Translates XLIFF 1.2 and 2, the exchange format of translation tools."""

import html
import re
from typing import Any
from xml.dom import minidom

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...inputs_random_transformer import check_string
from ..xml_events import xml_parser
from .html_translation import translate_html
from .plain_text import PRE_BEGINNING, PRE_END

Node = Any  # a node of minidom: mypy cannot know which kinds of nodes it contains

# Declares the encoding of a file, which a string does not have.
DECLARATION = re.compile(r"\A\ufeff?\s*<\?xml\s[^>]*\?>")
UNITS = {"1": "trans-unit", "2": "segment"}  # version → name of a unit
MAX_DEPTH = 100
PROTECTED = {"protected", "x-its-translate-no"}  # types of marks, the second by the Internationalization Tag Set
PAIRED = {"g", "mrk", "pc"}  # elements with text to translate; all else is copied with its content
OPENING = {"ept": "bpt", "ex": "bx", "ec": "sc", "em": "sm"}  # codes, by those that end them
TAG_OR_ENTITY = re.compile(r"(</?[a-zA-Z][^<>]*>|<!--.*?-->|&(?:#\w+|\w+);)", re.DOTALL)  # within a text
# What a parser of XML would change: in a tree, it is marked by surrogates, which no text has.
NORMALIZED = {ord(character): 0xD800 + ord(character) for character in "\t\n\r"}
MARKED = re.compile("[\ud800-\ud8ff]")
NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # a model can generate any character
UNTRANSLATED = {"new", "needs-translation"}  # states of a target that is no translation
MACHINE_TRANSLATED = {"state": "needs-review-translation", "state-qualifier": "leveraged-mt"}


def translate_xliff(document: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **options: Any) -> str:
    """Translate the segments without a target, or with one in the state `new` or `needs-translation`.

    Inline elements are placed at the translations of their words. Each element occurs once. If its words are separated
    in the translation, it is placed at the first of them. The same applies to tags and entities that are written as
    text, such as `&lt;br&gt;`. In XLIFF 1.2, a target gets the state `needs-review-translation`. In XLIFF 2, its
    segment gets the state `translated`.

    Args:
        document: the content of an XLIFF file.
        model, tokenizer, **options: those of `translate_html`.

    Raises:
        ValueError: the document is not a string or not XLIFF, or declares entities; or see `translate_html`.
    """
    tree = parse_xliff(document)
    version = tree.documentElement.getAttribute("version")[:1]
    units = [unit for unit in tree.getElementsByTagNameNS("*", UNITS[version]) if is_untranslated(unit)]
    inline: list[list[Node]] = [[] for _ in units]
    fragments = [
        PRE_BEGINNING + to_html(content_of(unit), elements) + PRE_END
        for unit, elements in zip(units, inline, strict=True)
    ]
    translations = translate_html(fragments, model, tokenizer, **options)
    for unit, elements, translation in zip(units, inline, translations, strict=True):
        target = empty_target(unit)
        fill(target, translation.removeprefix(PRE_BEGINNING).removesuffix(PRE_END), elements)
        if version == "2":
            unit.setAttribute("state", "translated")
        else:
            for name, value in MACHINE_TRANSLATED.items():
                target.setAttribute(name, value)
            if unit.hasAttribute("approved"):
                unit.setAttribute("approved", "no")
    return to_xml(tree)


def parse_xliff(document: str) -> Node:
    """The tree of a document; raises a `ValueError` if it is not XLIFF, or may not have targets."""
    check_string(document, 0)
    content = DECLARATION.sub("", document).encode()
    with xml_parser("the document") as parser:
        parser.Parse(content, True)  # an error for declared entities, which minidom would expand
    tree: Node = minidom.parseString(content)
    root = tree.documentElement
    version = root.getAttribute("version")
    if root.localName != "xliff" or version[:1] not in UNITS:
        raise ValueError(f"the document must be XLIFF 1 or 2, got <{root.tagName}> of version {version!r}.")
    if version.startswith("2") and not root.hasAttribute("trgLang"):
        raise ValueError("the document must have the attribute trgLang, which XLIFF 2 requires for targets, got none.")
    elements = [root]
    for _ in range(MAX_DEPTH):  # minidom walks its tree by recursion
        elements = [node for element in elements for node in element.childNodes if isinstance(node, minidom.Element)]
    if elements:
        raise ValueError(f"the document must have elements in at most {MAX_DEPTH} levels, got more.")
    return tree


def to_xml(tree: Node) -> str:
    """The document of a tree, which minidom would write without the references of line breaks and tabs."""
    mark_normalized(tree)
    return MARKED.sub(lambda mark: f"&#{ord(mark[0]) - 0xD800};", tree.toxml()) + "\n"


def mark_normalized(node: Node) -> None:
    """Mark white space that must be written as references: in attributes, and carriage returns in texts."""
    if isinstance(node, minidom.Text):
        node.data = node.data.replace("\r", chr(NORMALIZED[ord("\r")]))
    for attribute in (node.attributes or {}).values():
        attribute.value = attribute.value.translate(NORMALIZED)
    for part in node.childNodes:
        mark_normalized(part)


def child(unit: Node, name: str) -> Node:
    """The first child of a unit with a name."""
    return next((node for node in unit.childNodes if node.localName == name), None)


def content_of(unit: Node) -> Node:
    """The source of a unit, in XLIFF 1.2 with marks around its segments, if it has them; `None` without a source."""
    return child(unit, "seg-source") or child(unit, "source")


def is_untranslated(unit: Node) -> bool:
    """Whether a unit should be translated, and has something to translate."""
    node = unit
    while not node.hasAttribute("translate") and isinstance(node.parentNode, minidom.Element):
        node = node.parentNode
    source = content_of(unit)
    target = child(unit, "target")
    if node.getAttribute("translate") == "no" or source is None or not text_of(source).strip():
        return False
    if target is None or target.getAttribute("state") in UNTRANSLATED:
        return True
    for node in target.childNodes:
        is_empty_segment = node.localName == "mrk" and not node.childNodes
        if node.toxml().strip() and not is_empty_segment:
            return False
    return True


def text_of(node: Node) -> str:
    """The text of a node that can be translated."""
    if isinstance(node, minidom.Text):
        return node.data
    return "".join(text_of(part) for part in node.childNodes if isinstance(part, minidom.Text) or is_paired(part))


def is_paired(node: Node) -> bool:
    """Whether a node is an element with text that can be translated."""
    if node.localName not in PAIRED:
        return False
    return node.getAttribute("translate") != "no" and node.getAttribute("mtype") not in PROTECTED


def to_html(node: Node, elements: list[Node]) -> str:
    """The content of a node, in which ids are indices of the inline elements; they are appended to `elements`."""
    parts = []
    for part in node.childNodes:
        if isinstance(part, minidom.Text):
            parts.append(text_to_html(part, elements))
            continue
        index = len(elements)
        elements.append(part)
        if is_paired(part):
            parts.append(f'<span id="{index}">{to_html(part, elements)}</span>')
        else:
            parts.append(f'<img id="{index}"/>')
    return "".join(parts)


def text_to_html(text: Node, elements: list[Node]) -> str:
    """The same as `to_html` for a text, whose tags and entities become elements."""
    parts = []
    for number, part in enumerate(TAG_OR_ENTITY.split(text.data)):
        if number % 2:
            parts.append(f'<img id="{len(elements)}"/>')
            elements.append(text.ownerDocument.createTextNode(part))
        else:
            parts.append(html.escape(part, quote=False))
    return "".join(parts)


def empty_target(unit: Node) -> Node:
    """The target of a unit without its content, or a new one after the source, indented like it."""
    target = child(unit, "target")
    if target is not None:
        for node in [*target.childNodes]:
            target.removeChild(node)
        return target
    source = child(unit, "source")
    prefix = source.tagName.removesuffix("source")
    target = unit.ownerDocument.createElement(f"{prefix}target")
    following = content_of(unit).nextSibling
    indent = source.previousSibling
    if isinstance(indent, minidom.Text):
        unit.insertBefore(indent.cloneNode(False), following)
    unit.insertBefore(target, following)
    return target


def fill(target: Node, fragment: str, elements: list[Node]) -> None:
    """Add translated HTML with its inline elements to a target. Missing elements are added at the end."""
    remaining = dict(enumerate(elements))
    fragment = NOT_XML.sub("", fragment).replace("\r", "&#13;")
    add_content(target, minidom.parseString(f"<html>{fragment}</html>").documentElement, remaining)
    for element in remaining.values():
        target.appendChild(element.cloneNode(not is_paired(element)))
    order_codes(target)


def order_codes(target: Node) -> None:
    """Exchange two codes if the one that ends the other precedes it, because their words have another order."""
    ends: dict[tuple[str, str], Node] = {}
    for node in target.getElementsByTagName("*"):
        reference = node.getAttribute("startRef") or node.getAttribute("rid") or node.getAttribute("id")
        if node.localName in OPENING:
            ends[OPENING[node.localName], reference] = node
        elif (node.localName, reference) in ends:
            end = ends[node.localName, reference]
            node.parentNode.replaceChild(end.cloneNode(True), node)
            end.parentNode.replaceChild(node, end)


def add_content(target: Node, fragment: Node, remaining: dict[int, Node]) -> None:
    """Add the content of a node of HTML. An element that is not in `remaining` is a repetition and is omitted."""
    for part in fragment.childNodes:
        if isinstance(part, minidom.Text):
            target.appendChild(target.ownerDocument.createTextNode(part.data))
            continue
        element = remaining.pop(int(part.getAttribute("id")), None)
        if element is None:
            add_content(target, part, remaining)
        else:
            add_content(target.appendChild(element.cloneNode(not is_paired(element))), part, remaining)
