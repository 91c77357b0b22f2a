"""Traits of pairs that pass the filters: each is an error in one corpus and right in another."""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence

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
    sources = "".join(pair.source for pair in pairs)
    targets = "".join(pair.target for pair in pairs)
    characters = Counter(sources) + Counter(targets)
    rare = {character for character, count in characters.items() if count < RARE}
    source_others = {*APOSTROPHES} - {max(APOSTROPHES, key=sources.count)}
    target_others = {*APOSTROPHES} - {max(APOSTROPHES, key=targets.count)}
    usual_ratio = len(targets) / len(sources)
    earlier: set[int] = set()
    for pair in pairs:
        source, target = words_of(pair.source), words_of(pair.target)
        key = hash((*source, None, *target))  # takes less memory than the words
        has_trait = {
            ONE_WORD: len(source) == len(target) == 1,
            NEAR_DUPLICATE: key in earlier,
            SAME_LANGUAGE: 3 * len({*source} & {*target}) >= 2 * max(len(source), len(target), MIN_WORDS),
            UNUSUAL_RATIO: not 0.5 <= len(pair.target) / len(pair.source) / usual_ratio <= 2,
            RARE_CHARACTER: not rare.isdisjoint(pair.source + pair.target),
            APOSTROPHE: not (source_others.isdisjoint(pair.source) and target_others.isdisjoint(pair.target)),
        }
        earlier.add(key)
        yield from ((pair, trait) for trait, is_present in has_trait.items() if is_present)


def words_of(text: str) -> list[str]:
    """The words of a text, regardless of case and accents; a text without words is one."""
    decomposed = unicodedata.normalize("NFD", text.casefold())
    return WORD.findall(ACCENTS.sub("", decomposed)) or [text]
