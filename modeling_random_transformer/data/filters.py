"""The filters of cleaning, and their options: copies, lengths, Unicode scripts, languages and duplicates."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from unicodedata import normalize

import numpy as np
import regex

# Reasons to drop a pair, in the order of the filters.
COPY = "the target is a copy of the source"
TOO_LONG = "longer than max_length"
RATIO = "length ratio above max_length_ratio"
SCRIPT = "{side} in another script"
LANGUAGE = "{side} in another language"
DUPLICATE = "a duplicate of an earlier pair"

COPIES, DUPLICATES, UNITS = ("near", "exact", "off"), ("pair", "source", "target", "off"), ("characters", "words")
# Combining marks, such as vowel signs in Devanagari, are part of a word, but do not begin one: an emoji may have one.
WORD = regex.compile(r"[^\W\p{M}][\w\p{M}]*")

# The scripts of living languages with much text, for the scripts of a corpus.
SCRIPTS = (
    *("Latin", "Cyrillic", "Greek", "Armenian", "Georgian", "Hebrew", "Arabic", "Syriac", "Thaana", "Nko"),
    *("Ethiopic", "Tifinagh", "Devanagari", "Bengali", "Gurmukhi", "Gujarati", "Oriya", "Tamil", "Telugu", "Kannada"),
    *("Malayalam", "Sinhala", "Thai", "Lao", "Tibetan", "Myanmar", "Khmer", "Mongolian", "Han", "Hiragana", "Katakana"),
    *("Hangul", "Bopomofo", "Yi", "Cherokee", "Canadian_Aboriginal", "Javanese", "Balinese", "Sundanese", "Cham"),
    *("Ol_Chiki", "Meetei_Mayek", "Tai_Le", "New_Tai_Lue", "Vai", "Adlam", "Lisu", "Osage"),
)
SAMPLE_SHARE = 0.1
# Letters of several scripts, such as U+30FC in Hiragana and Katakana, count for none.
LETTER = r"[\p{L}--\p{Script=Common}--\p{Script=Inherited}]"
_SCRIPT_OF = regex.compile("|".join(rf"(?P<{name}>\p{{Script={name}}})" for name in SCRIPTS))
_LETTERS = regex.compile(LETTER, regex.V1)
HASH_BYTES = 8  # of a text that is compared with others

Filter = Callable[[str, str], str | None]


@dataclass(frozen=True)
class CleaningOptions:
    """Options of the filters. Each filter can be turned off.

    Args:
        copies: `"near"` drops a pair whose target has the same words as the source, regardless of case and
            punctuation; `"exact"` only if both texts are equal. Texts without letters, such as numbers, are kept.
        duplicates: `"pair"` drops a pair that occurred before; `"source"` or `"target"` one whose source or target
            occurred before. Texts are compared exactly, by a hash of 64 bits (8 bytes of memory per pair).
        max_length: drop a pair with a longer source or target, in units; `None` for no limit.
        max_length_ratio: drop a pair if one side is more than this many times as long as the other (9 is the default
            of Moses' `clean-corpus-n`); `None` for no limit.
        length_unit: `"characters"`, which suits every language, or `"words"`, separated by spaces.
        min_script_share: drop a pair if a smaller share of the letters of a side is in the scripts of its language,
            0 to 1; `None` to turn off.
        source_script: Unicode scripts of the source language, such as `["Latin"]` or `["Han", "Hiragana",
            "Katakana"]`; `None` for those of at least 10% of the letters of the first 10,000 pairs that remain.
        target_script: the same for the target language.
        source_lang: ISO 639 code of the source language; drop a pair if py3langid, an optional package, identifies
            the source as another language; `None` to turn off.
        target_lang: the same for the target language.
        min_language_probability: the least probability of another language to drop a pair, 0 to 1.

    Raises:
        ValueError: an option is invalid; the message names it.
    """

    copies: str = "near"
    duplicates: str = "pair"
    max_length: int | None = 1000
    max_length_ratio: float | None = 9.0
    length_unit: str = "characters"
    min_script_share: float | None = 0.5
    source_script: Sequence[str] | None = None
    target_script: Sequence[str] | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    min_language_probability: float = 0.8

    def __post_init__(self) -> None:
        for name, allowed in (("copies", COPIES), ("duplicates", DUPLICATES), ("length_unit", UNITS)):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}.")
        for name in ("max_length", "max_length_ratio"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1 or None, got {value}.")
        for name in ("min_script_share", "min_language_probability"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ValueError(f"{name} must be from 0 to 1, got {value}.")
        for name in ("source_script", "target_script"):
            scripts = getattr(self, name)
            if scripts is not None:
                check_scripts(name, scripts)

    def samples_scripts(self) -> bool:
        """Whether scripts are determined from the text."""
        return self.min_script_share is not None and None in (self.source_script, self.target_script)


def cheap_filters(options: CleaningOptions, scripts: Mapping[str, Sequence[str]]) -> Iterator[Filter]:
    """The filters that take microseconds, each a function that returns the reason to drop a pair, or `None`.

    Args:
        options: the options.
        scripts: the scripts of the sides `"source"` and `"target"`; empty to accept every script.
    """
    if options.copies != "off":
        yield _copy_filter(near=options.copies == "near")
    if options.max_length is not None or options.max_length_ratio is not None:
        yield _length_filter(options)
    if options.min_script_share:
        for side, names in scripts.items():
            if names:
                accepts = ScriptFilter(names, options.min_script_share)
                yield _one_side(side, accepts, SCRIPT.format(side=side))


def language_filters(options: CleaningOptions) -> list[Filter]:
    """The filters of languages, as in `cheap_filters`.

    Raises:
        ValueError: py3langid is not installed or does not know a language.
    """
    return [
        _one_side(
            side,
            LanguageFilter(language, options.min_language_probability, argument=f"{side}_lang"),
            LANGUAGE.format(side=side),
        )
        for side, language in (("source", options.source_lang), ("target", options.target_lang))
        if language is not None
    ]


def _one_side(side: str, accepts: Callable[[str], bool], reason: str) -> Filter:
    if side == "source":
        return lambda source, _: None if accepts(source) else reason
    return lambda _, target: None if accepts(target) else reason


def _copy_filter(near: bool) -> Filter:
    def check(source: str, target: str) -> str | None:
        if source == target or (near and _same_words(source, target)):
            return COPY if any(map(str.isalpha, source)) else None
        return None

    return check


def _same_words(source: str, target: str) -> bool:
    """Whether texts have the same words, regardless of case and punctuation."""
    source, target = normalize("NFC", source.casefold()), normalize("NFC", target.casefold())
    first, second = WORD.search(source), WORD.search(target)
    # The first words of most pairs differ, so that the complete comparison is rare.
    if first is None or second is None or first[0] != second[0]:
        return False
    return WORD.findall(source) == WORD.findall(target)


def _length_filter(options: CleaningOptions) -> Filter:
    limit = float("inf") if options.max_length is None else options.max_length
    max_ratio = float("inf") if options.max_length_ratio is None else options.max_length_ratio
    in_words = options.length_unit == "words"

    def check(source: str, target: str) -> str | None:
        shorter, longer = (len(source.split()), len(target.split())) if in_words else (len(source), len(target))
        if shorter > longer:
            shorter, longer = longer, shorter
        if longer > limit:
            return TOO_LONG
        return RATIO if longer > max_ratio * shorter else None

    return check


def check_scripts(argument: str, scripts: Sequence[str]) -> None:
    """Raise a `ValueError` unless these are names of Unicode scripts."""
    if isinstance(scripts, str) or not scripts:
        raise ValueError(f"{argument} must be a list of Unicode scripts, got {scripts!r}.")
    for name in scripts:
        try:
            regex.compile(rf"\p{{Script={name}}}")
        except regex.error as error:
            raise ValueError(f"{argument} must name Unicode scripts, such as Latin, got {name!r}.") from error


def scripts_of(texts: Iterable[str]) -> list[str]:
    """The scripts of at least `SAMPLE_SHARE` of the letters in texts, the most frequent first."""
    counts: Counter[str] = Counter()
    for character, count in Counter(chain.from_iterable(texts)).items():
        if _LETTERS.match(character) and (match := _SCRIPT_OF.match(character)):
            counts[match.lastgroup] += count
    return [name for name, count in counts.most_common() if count >= SAMPLE_SHARE * counts.total()]


class ScriptFilter:
    """Accepts texts with at least a share of their letters in these scripts, and texts without letters.

    Args:
        scripts: names of Unicode scripts.
        min_share: the least share of letters, 0 to 1.
    """

    def __init__(self, scripts: Sequence[str], min_share: float):
        expected = "".join(rf"\p{{Script={name}}}" for name in scripts)
        self._foreign = regex.compile(rf"[{LETTER}--[{expected}]]", regex.V1)
        self._min_share = min_share
        self._accepted: set[str] = set()  # characters that are not foreign letters, as far as they have occurred

    def __call__(self, text: str) -> bool:
        if self._accepted.issuperset(text):
            return True
        self._accepted.update(character for character in {*text} if not self._foreign.match(character))
        foreign = sum(character not in self._accepted for character in text)
        return not foreign or 1 - foreign / len(_LETTERS.findall(text)) >= self._min_share


class LanguageFilter:
    """Accepts texts unless py3langid identifies them as another language with a sufficient probability.

    py3langid (BSD license, a model of 139 languages in 5 MB, no download) is a naive Bayes classifier of byte
    sequences (Lui and Baldwin 2012). docs/how_to/clean.md has measurements. Short texts are accepted: their
    probabilities are small.

    Args:
        language: ISO 639 code of the language.
        min_probability: the least probability of another language to reject a text, 0 to 1.
        argument: name of the argument in error messages.

    Raises:
        ValueError: py3langid is not installed or does not know the language.
    """

    def __init__(self, language: str, min_probability: float, argument: str = "language"):
        try:
            from py3langid.langid import MODEL_FILE, LanguageIdentifier
        except ImportError as error:
            raise ValueError(
                f"{argument} requires py3langid: pip install 'random-transformer[langid]', got {language!r} without it."
            ) from error
        identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
        if language not in identifier.labels:
            raise ValueError(f"{argument} must be one of {', '.join(sorted(identifier.labels))}, got {language!r}.")
        self._classify = identifier.classify
        self._language, self._min_probability = language, min_probability

    def __call__(self, text: str) -> bool:
        language, probability = self._classify(text)
        return language == self._language or probability < self._min_probability


class HashSet:
    """64-bit hashes of texts, in sorted arrays whose sizes at least double.

    Two of n different texts have the same hash with a probability of n² / 2^65: 0.0003 for a hundred million.
    """

    def __init__(self) -> None:
        self._runs: list[np.ndarray] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, texts: Iterable[str]) -> np.ndarray:
        """Add texts, and return for each whether it is new, `[texts]`."""
        digests = (blake2b(text.encode("utf-8", "surrogatepass"), digest_size=HASH_BYTES).digest() for text in texts)
        hashes = np.frombuffer(b"".join(digests), dtype="<u8")
        is_new = np.zeros(len(hashes), dtype=bool)
        is_new[np.unique(hashes, return_index=True)[1]] = True
        for run in self._runs:
            positions = np.searchsorted(run, hashes)
            is_new &= run[np.minimum(positions, len(run) - 1)] != hashes
        self._append(np.sort(hashes[is_new]))
        return is_new

    def _append(self, run: np.ndarray) -> None:
        if not len(run):
            return
        self._runs.append(run)
        while len(self._runs) > 1 and len(self._runs[-2]) < 2 * len(self._runs[-1]):
            merged = np.concatenate([self._runs.pop(), self._runs.pop()])
            merged.sort(kind="stable")
            self._runs.append(merged)
