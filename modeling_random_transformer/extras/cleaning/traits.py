"""Counts suspicious properties of kept pairs. Each is an error in some corpora and correct in others."""

import re
import unicodedata
from collections.abc import Iterator, Sequence

import numpy as np

from ...data.sources import ParallelLine
from ...data.words import APOSTROPHES, WORD

RARE = 5  # fewer occurrences of a character
MIN_WORDS = 3  # texts with fewer words may be equal because of a single name
ACCENTS = re.compile("[\u0300-\u036f]")  # marks of other scripts, such as vowel signs, distinguish words
# A table for `str.translate` that keeps words and replaces the rest by spaces.
ASCII_WORDS = re.sub(r"\W", " ", "".join(map(chr, range(128))))

ONE_WORD = "one word on each side"
NEAR_DUPLICATE = "an earlier pair in another orthography"
SAME_LANGUAGE = "two thirds of the words on both sides"
UNUSUAL_RATIO = "less than half or over twice the usual ratio"
RARE_CHARACTER = "a rare character"
APOSTROPHE = "another apostrophe than the usual one"


def traits(pairs: Sequence[ParallelLine]) -> Iterator[tuple[ParallelLine, str]]:
    """Each trait of each pair. Of pairs that are equal but for orthography, the first is no duplicate."""
    if not pairs:
        return
    sources = "".join(pair.source for pair in pairs)
    targets = "".join(pair.target for pair in pairs)
    rare = any_character(rare_characters(sources + targets))
    source_others = any_character(unusual_apostrophes(sources))
    target_others = any_character(unusual_apostrophes(targets))
    usual_ratio = len(targets) / len(sources)
    earlier: set[int] = set()
    for pair in pairs:
        source = words_of(pair.source)
        target = words_of(pair.target)
        common = {*source}.intersection(target)
        longest = max(len(source), len(target), MIN_WORDS)
        ratio = len(pair.target) / len(pair.source)
        key = hash((*source, None, *target))  # takes less memory than the words
        if len(source) == len(target) == 1:
            yield pair, ONE_WORD
        if key in earlier:
            yield pair, NEAR_DUPLICATE
        if 3 * len(common) >= 2 * longest:
            yield pair, SAME_LANGUAGE
        if not 0.5 <= ratio / usual_ratio <= 2:
            yield pair, UNUSUAL_RATIO
        if rare.search(pair.source) or rare.search(pair.target):
            yield pair, RARE_CHARACTER
        if source_others.search(pair.source) or target_others.search(pair.target):
            yield pair, APOSTROPHE
        earlier.add(key)


def any_character(characters: set[str]) -> re.Pattern[str]:
    """A pattern of one of these characters."""
    return re.compile(f"[{re.escape(''.join(characters))}]" if characters else "(?!)")


def rare_characters(text: str) -> set[str]:
    """The characters that occur fewer than `RARE` times."""
    codes = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4")
    counts = np.bincount(codes)
    is_rare = (counts > 0) & (counts < RARE)
    return {*map(chr, np.flatnonzero(is_rare))}


def unusual_apostrophes(text: str) -> set[str]:
    """All apostrophes but the most frequent one of a text."""
    usual = max(APOSTROPHES, key=text.count)
    return {*APOSTROPHES} - {usual}


def words_of(text: str) -> list[str]:
    """The words of a text, regardless of case and accents; a text without words is one."""
    decomposed = unicodedata.normalize("NFD", text.casefold())
    letters = ACCENTS.sub("", decomposed)
    words = letters.translate(ASCII_WORDS).split() if letters.isascii() else WORD.findall(letters)
    return words or [text]
