"""Places placeholders, which are not translated, in a translation according to the cross-attention."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import NamedTuple

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...base.placeholders import PLACEHOLDER
from ...data.sources import Pair
from ...inputs_random_transformer import Languages
from ..characters import is_mark, is_wide
from .alignments import Aligner, Links
from .words import Span

ADJACENT_PLACEHOLDERS = re.compile(rf"(?:{PLACEHOLDER.pattern})(?:\s*(?:{PLACEHOLDER.pattern}))*", re.VERBOSE)
# Chinese and Japanese characters, other words, and all other characters one by one
UNIT = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]|[^\W\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+|[^\w\s]")
CLOSING = (*".,;:!?)",)  # no space before these


def unit_spans(text: str) -> list[Span]:
    """The spans of the words of a text, including combining marks, and of its punctuation marks."""
    spans: list[Span] = []
    for match in UNIT.finditer(text):
        start, end = match.span()
        first = text[start]
        before = text[start - 1]
        is_inside = is_mark(first) or (is_mark(before) and first.isalnum() and not is_wide(first))
        if is_inside and spans and spans[-1][1] == start:
            spans[-1] = spans[-1][0], end
        else:
            spans.append((start, end))
    return spans


class Unit(NamedTuple):
    """A word of a translation, or a punctuation mark, and the one of the source that it translates.

    Each character of a word that is the same in the source is a unit, since markup may be within the word.

    Attributes:
        start: index of its first character in the translation.
        end: index after its last character.
        source: the span of the source word.
    """

    start: int
    end: int
    source: Span


def linked_units(sentence: str, translation: str, links: Links | None, source: int = 0, target: int = 0) -> list[Unit]:
    """The units of a translation.

    Args:
        sentence: its source.
        translation: the translation.
        links: which units of the sentence and of the translation belong together; `None` for the same order.
        source: index of the sentence in a longer text.
        target: index of the translation in that of the longer text.
    """
    source_spans = unit_spans(sentence) or [(0, 0)]
    target_spans = unit_spans(translation)
    words = [sentence[start:end] for start, end in source_spans]
    numbers = {target_number: source_number for source_number, target_number in links or ()}
    units = []
    number = 0
    for row, (start, end) in enumerate(target_spans):
        if links is None:
            number = row * len(words) // len(target_spans)
        number = numbers.get(row, number)
        word = translation[start:end]
        if word in words and not word.isalpha():  # a number or a punctuation mark translates the same one of the source
            equal = [index for index, source_word in enumerate(words) if source_word == word]
            number = min(equal, key=lambda index: abs(index - number))
        first, last = source_spans[number]
        if word == words[number]:
            for offset in range(len(word)):
                source_index = source + first + offset
                target_index = target + start + offset
                source_span = source_index, source_index + 1
                units.append(Unit(target_index, target_index + 1, source_span))
        else:
            source_span = source + first, source + last
            units.append(Unit(target + start, target + end, source_span))
    return units


def last_units(units: Sequence[Unit]) -> dict[int, int]:
    """The number of the last unit that translates a source word or punctuation mark, by the index after the latter.

    A word is no translation of a punctuation mark: what belongs to the mark does not belong to the word.
    """
    numbers = {}
    for number, unit in enumerate(units):
        source_start, source_end = unit.source
        if source_end - source_start > 1 or unit.end - unit.start == 1:
            numbers[source_end] = number
    return numbers


def belongs_to_word(text: str, index: int) -> bool:
    """Whether something at an index belongs to the word before it: a space is behind it only."""
    before = text[max(index - 1, 0) : index]
    behind = text[index : index + 1]
    return bool(before.strip()) and behind.isspace()


@dataclass(frozen=True)
class ProtectedText:
    """A text without its placeholders.

    Attributes:
        text: the other parts of the text.
        placeholders: the index in it of each placeholder, and the placeholder, with a space that belongs to it.
    """

    text: str
    placeholders: list[tuple[int, str]]

    @property
    def needs_alignment(self) -> bool:
        """Whether the place of a placeholder depends on the words; not at the beginning and at the end."""
        return any(0 < index < len(self.text) for index, _ in self.placeholders)

    def restore(self, translation: str, links: Links | None) -> str:
        """The translation with the placeholders.

        Args:
            translation: the translation of the other parts.
            links: see `linked_units`.
        """
        units = linked_units(self.text, translation, links)
        last = last_units(units)
        starts = [unit.start for unit in units]
        starts.append(len(translation))
        places = []
        for index, placeholder in self.placeholders:
            if index in last and belongs_to_word(self.text, index):
                place = units[last[index]].end
            else:
                place = starts[self.following_unit(index, units)]
            places.append((place, placeholder))
        output = ""
        position = 0
        for place, placeholder in sorted(places, key=itemgetter(0)):
            output += translation[position:place]
            following = translation[place : place + 1]
            output += beside(output, placeholder, following)
            position = place
        return output + translation[position:]

    def following_unit(self, index: int, units: Sequence[Unit]) -> int:
        """The number of the unit before which a placeholder at an index of the text is placed; after all units last."""
        if index == 0 and self.text:
            return 0
        by_source = sorted(range(len(units)), key=lambda number: units[number].source)
        for number in by_source:
            if units[number].source[0] >= index:
                return number
        return by_source[-1] + 1 if by_source and index < len(self.text) else len(units)


def protect(text: str, copied: re.Pattern[str] = ADJACENT_PLACEHOLDERS) -> ProtectedText:
    """Separate a text from its copied parts. Adjacent placeholders are one part."""
    kept = ""
    position = 0
    placeholders: list[tuple[int, str]] = []
    for match in copied.finditer(text):
        kept += text[position : match.start()]
        placeholder = match[0]
        position = match.end()
        following = text[position : position + 1]
        if following.isspace() and not kept[-1:].strip():
            placeholder += following
            position += 1
        elif kept[-1:].isspace() and (not following or following in CLOSING):
            placeholder = kept[-1] + placeholder
            kept = kept[:-1]
            placeholders = [(min(index, len(kept)), previous) for index, previous in placeholders]
        placeholders.append((len(kept), placeholder))
    return ProtectedText(kept + text[position:], placeholders)


def beside(before: str, placeholder: str, word: str) -> str:
    """A placeholder, or markup without text, with spaces that separate it from letters and digits on both sides.

    Args:
        before: the text before it.
        placeholder: the placeholder; the space before it is behind it instead if a word follows, and the space behind
            it is before it if punctuation or nothing follows.
        word: what follows.
    """
    if placeholder[-1:].isspace() and word in ("", *CLOSING):
        placeholder = placeholder[-1] + placeholder[:-1]
    if placeholder[:1].isspace() and not before[-1:].strip():
        placeholder = placeholder[1:] + (" " if word[:1].isalnum() else "")
    if before[-1:].isalnum() and placeholder[:1].isalnum():
        placeholder = f" {placeholder}"
    if placeholder[-1:].isalnum() and word[:1].isalnum():
        placeholder += " "
    return placeholder


def align_units(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    pairs: Sequence[Pair | None],
    languages: Languages,
) -> list[Links | None]:
    """The links between the units of each pair; `None` for `None`. A tokenizer with language tags has the languages."""
    if not any(pairs):
        return [None] * len(pairs)
    aligner = Aligner(model, tokenizer, spans_of=unit_spans, truncation=True, **languages.arguments)
    return aligner(pairs, 0, lambda _: None)
