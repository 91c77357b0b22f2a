"""Traits of pairs that pass the filters: each is an error in one corpus and right in another."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from .filters import WORD
from .sources import ParallelLine

RARE = 5  # fewer occurrences of a character
MIN_WORDS = 3  # of texts in the same language, which a single name must not decide
ACCENTS = re.compile("[\u0300-\u036f]")  # marks of other scripts, such as vowel signs, distinguish words
APOSTROPHES = "'`\u00b4\u02bb\u02bc\u2018\u2019\ua78c"

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
    rare = rare_characters(sources, targets)
    source_others = unusual_apostrophes(sources)
    target_others = unusual_apostrophes(targets)
    usual_ratio = len(targets) / len(sources)
    earlier: set[int] = set()
    for pair in pairs:
        source = words_of(pair.source)
        target = words_of(pair.target)
        common = {*source}.intersection(target)
        longest = max(len(source), len(target), MIN_WORDS)
        ratio = len(pair.target) / len(pair.source)
        key = hash((*source, None, *target))  # takes less memory than the words
        has_trait = {
            ONE_WORD: len(source) == len(target) == 1,
            NEAR_DUPLICATE: key in earlier,
            SAME_LANGUAGE: 3 * len(common) >= 2 * longest,
            UNUSUAL_RATIO: not 0.5 <= ratio / usual_ratio <= 2,
            RARE_CHARACTER: not rare.isdisjoint(pair.source + pair.target),
            APOSTROPHE: not (source_others.isdisjoint(pair.source) and target_others.isdisjoint(pair.target)),
        }
        earlier.add(key)
        for trait, is_present in has_trait.items():
            if is_present:
                yield pair, trait


def rare_characters(*texts: str) -> set[str]:
    """The characters that occur fewer than `RARE` times."""
    counts = Counter(chain.from_iterable(texts))
    return {character for character, count in counts.items() if count < RARE}


def unusual_apostrophes(text: str) -> set[str]:
    """All apostrophes but the most frequent one of a text."""
    usual = max(APOSTROPHES, key=text.count)
    return {*APOSTROPHES} - {usual}


def words_of(text: str) -> list[str]:
    """The words of a text, regardless of case and accents; a text without words is one."""
    decomposed = unicodedata.normalize("NFD", text.casefold())
    return WORD.findall(ACCENTS.sub("", decomposed)) or [text]
