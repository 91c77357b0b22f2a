"""Detects problems of a translation without a reference: loops, copies, additions, another script.

The report counts these problems, and `repair` translates such texts in other ways.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ...data.words import WORD, words_digest
from ...inference.candidates import Candidate
from ...inference.confidence import find_calibration
from ..cleaning.filters import script_filter

EMPTY = "empty"
LOOP = "repeats a part"
COPY = "copies the source"
UNFINISHED = "without an end token"
LENGTH = "length far from that of the source"
SCRIPT = "in another script"
NUMBERS = "without a number of the source"
PROBLEMS = (EMPTY, LOOP, COPY, UNFINISHED, LENGTH, SCRIPT, NUMBERS)

RUN = re.compile(r"(.{2,80}?)\1{2,}", re.DOTALL)  # a part that follows itself at least twice
DIGIT_SEPARATOR = r"[.,:/'\u2019\u066b\u066c]"  # between digits, also in Switzerland and in Arabic
SPACED_GROUPS = r"\d{1,3}(?:[ \u00a0\u2009\u202f]\d{3})+(?!\d)"
NUMBER = re.compile(rf"{SPACED_GROUPS}(?:{DIGIT_SEPARATOR}\d+)*|\d(?:{DIGIT_SEPARATOR}?\d)+")
# A number of at least two digits without letters, for which other languages have no word as often as for one digit
COPIED_NUMBER = re.compile(rf"(?<![^\W_])(?:{NUMBER.pattern})(?![^\W_])")
DIGITS = re.compile(r"\d+")
NGRAM, REPETITIONS = 4, 3  # this many equal n-grams of words are a loop
EQUAL_WORDS, WORDS_PER_EQUAL = 4, 3  # this many equal words are a loop, if they are at least one in three
COPIED_WORDS = 4  # fewer may be a name
# Limits on the characters of a translation: multiples of the expected length, and characters beyond them.
MIN_EXPECTED_RATIO, MAX_EXPECTED_RATIO = 0.25, 3.0
MARGIN_CHARACTERS = 30
MIN_SCRIPT_SHARE = 0.5


@dataclass(frozen=True)
class Detector:
    """Finds the problems of translations.

    Attributes:
        end_token: the token that ends a translation; `""` if it is also the padding, which candidates do not have.
        length_ratio: characters of a translation per character of its source.
        scripts: Unicode scripts of translations; empty for any.
    """

    end_token: str
    length_ratio: float = 1.0
    scripts: Sequence[str] = ()

    def __call__(self, source: str, candidate: Candidate) -> list[str]:
        """The problems of a translation, some of `PROBLEMS`; none of a text that the model has not translated."""
        translation = candidate.translation
        if not candidate.tokens:
            return []
        if not translation.strip():
            return [EMPTY]
        is_copied = words_digest(source) == words_digest(translation)
        checks = {
            LOOP: has_loop(source, translation),
            COPY: is_copied and len(WORD.findall(source)) >= COPIED_WORDS,
            UNFINISHED: self.end_token and candidate.tokens[-1] != self.end_token,
            LENGTH: self.has_other_length(source, translation),
            SCRIPT: self.scripts and not self.has_script(translation),
            NUMBERS: lacks_number(source, translation),
        }
        return [problem for problem, is_present in checks.items() if is_present]

    @cached_property
    def has_script(self) -> Callable[[str], bool]:
        """Whether enough letters of a translation are in the scripts. It is created once and caches characters."""
        return script_filter(self.scripts, MIN_SCRIPT_SHARE)

    def has_other_length(self, source: str, translation: str) -> bool:
        """Whether a translation is much longer or shorter than its source predicts."""
        expected = self.length_ratio * len(source.strip())
        length = len(translation.strip())
        is_too_long = length > MAX_EXPECTED_RATIO * expected + MARGIN_CHARACTERS
        return is_too_long or length < MIN_EXPECTED_RATIO * (expected - MARGIN_CHARACTERS)


def detector_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, **languages: str | None) -> Detector:
    """The detector for the translations of a model, with the lengths and scripts of its calibration, if it has one.

    `languages` are `src_lang` and `tgt_lang` of a tokenizer with language tags.
    """
    end_token = "" if tokenizer.eos_token == tokenizer.pad_token else str(tokenizer.eos_token)
    calibration = find_calibration(model, tokenizer, **languages)
    if calibration is None:
        return Detector(end_token)
    return Detector(end_token, calibration.length_ratio, calibration.scripts)


def has_loop(source: str, translation: str) -> bool:
    """Whether a translation repeats parts more than its source."""
    if longest_run(translation) > 2 * longest_run(source):
        return True
    words = casefolded_words(translation)
    source_words = casefolded_words(source)
    if repeats(words, source_words, NGRAM, REPETITIONS):
        return True
    equal_words = max(EQUAL_WORDS, math.ceil(len(words) / WORDS_PER_EQUAL))
    return repeats(words, source_words, 1, equal_words)


def longest_run(text: str) -> int:
    """The characters of the longest part that consists of at least three equal parts."""
    return max((len(run[0]) for run in RUN.finditer(f" {text.casefold()} ")), default=0)


def casefolded_words(text: str) -> list[str]:
    """The words of a text; characters of scripts without spaces are counted with their neighbors."""
    return WORD.findall(text.casefold())


def repeats(words: Sequence[str], source_words: Sequence[str], length: int, least: int) -> bool:
    """Whether an n-gram of `length` words occurs at least `least` times, over twice as often as any of the source."""
    return max_repetitions(words, length) >= max(least, 2 * max_repetitions(source_words, length) + 1)


def max_repetitions(words: Sequence[str], length: int) -> int:
    """How often the most frequent n-gram of `length` words occurs."""
    ngrams = Counter(zip(*(words[start:] for start in range(length)), strict=False))
    return max(ngrams.values(), default=0)


def lacks_number(source: str, translation: str) -> bool:
    """Whether a translation lacks a number of its source.

    A number has the same digits in other notations, such as 1,000.5, 1.000,5 and 1 000,5. Or all its parts are in the
    translation, as those of 14:30 are in "14h30", and those of 2020-01-15 in "15/01/2020".
    """
    copied = COPIED_NUMBER.findall(source)
    lacking_parts = numbers(DIGITS.findall(" ".join(copied))) - numbers(DIGITS.findall(translation))
    return bool(lacking_parts and numbers(copied) - numbers(NUMBER.findall(translation)))


def numbers(texts: Sequence[str]) -> Counter[str]:
    """How often each number occurs among texts, by its digits, which may be of any script."""
    counts: Counter[str] = Counter()
    for number in texts:
        digits = [str(int(digit)) for digit in number if digit.isdecimal()]
        counts["".join(digits)] += 1
    return counts
