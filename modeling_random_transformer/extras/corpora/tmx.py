"""Translation memories in TMX 1.1 to 1.4, which are read unit by unit."""

import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

from ...base.compressed_files import open_binary
from ...base.errors import format_names
from ..xml_events import xml_parser
from .languages import matching_code

CHUNK_BYTES = 2**16
# Elements of a segment with mark-up of the original document. The text of `hi`, a highlight, is part of the segment.
CODE_ELEMENTS = {"bpt", "ept", "it", "ph", "ut"}
LINE_BREAK = re.compile(r"[ \t]*[\r\n]\s*")

matching = lru_cache(matching_code)  # the units of a file have few combinations of languages


def read_units(path: Path) -> Iterator[dict[str, str]]:
    """The segments of each unit by language code, without mark-up, and with one space for a line break.

    Of several segments of a language, the first with text is kept.

    Raises:
        ValueError: the file is not XML, or not TMX, or declares entities.
    """
    with open_binary(path) as file, xml_parser(path) as parser:
        events = Events()
        parser.StartElementHandler = events.start
        parser.EndElementHandler = events.end
        parser.CharacterDataHandler = events.text
        while chunk := file.read(CHUNK_BYTES):
            parser.Parse(chunk)
            yield from events.units
            events.units.clear()
        parser.Parse(b"", True)
        yield from events.units  # expat 2.6 parses what follows a long comment when the document ends
    if not events.is_tmx:
        raise ValueError(f"{path} must be TMX, got XML without the element <tmx>.")


def read_tmx(path: Path, codes: tuple[str, ...]) -> Iterator[tuple[int, list[str] | str]]:
    """The number of each unit, from 1, and its segments in these languages; all its text if one is missing.

    Raises:
        ValueError: see `read_units`; or no unit has all languages.
    """
    languages: dict[str, None] = {}
    has_pairs = False
    for number, unit in enumerate(read_units(path), start=1):
        with_text = tuple(filter(unit.get, unit))
        names = [matching(code, with_text) or matching(code, tuple(unit)) for code in codes]
        texts = [unit[name] for name in names if name is not None]
        if len(texts) == len({*names}) == len(codes):  # rejects one segment for two codes, such as pt and pt-BR
            has_pairs = True
            yield number, texts
        else:
            languages |= dict.fromkeys(unit)
            yield number, " ".join(unit.values())
    if languages and not has_pairs:
        raise ValueError(
            f"source_key and target_key must be languages of {path}, "
            f"{format_names(filter(None, languages)) or 'none'}, got {' and '.join(map(repr, codes))}."
        )


class Events:
    """Receives the events of the parser.

    Attributes:
        units: the segments of each complete unit, by language.
        is_tmx: whether there was the element of a translation memory.
    """

    def __init__(self) -> None:
        self.is_tmx = False
        self.units: list[dict[str, str]] = []
        self.unit: dict[str, str] = {}
        self.language = ""
        self.parts: list[str] | None = None  # text of the current segment
        self.code_depth = 0  # elements of `CODE_ELEMENTS` around the text

    def start(self, name: str, attributes: dict[str, str]) -> None:
        """Begin an element."""
        if name == "tu":
            self.unit = {}
        elif name == "tuv":
            self.language = attributes.get("xml:lang") or attributes.get("lang", "")
        elif name == "seg":
            self.parts = []
        elif name == "tmx":
            self.is_tmx = True
        elif name in CODE_ELEMENTS:
            self.code_depth += 1

    def text(self, text: str) -> None:
        """Add a text, if it is part of a segment."""
        if self.parts is not None and not self.code_depth:
            self.parts.append(text)

    def end(self, name: str) -> None:
        """End an element."""
        if name in CODE_ELEMENTS:
            self.code_depth -= 1
        elif name == "seg" and self.parts is not None:
            segment = "".join(self.parts).strip()
            if not self.unit.get(self.language):
                self.unit[self.language] = LINE_BREAK.sub(" ", segment)
            self.parts = None
        elif name == "tu":
            self.units.append(self.unit)
