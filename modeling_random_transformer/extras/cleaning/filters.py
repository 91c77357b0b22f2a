"""The filters of cleaning, and their options: copies, lengths, Unicode scripts, languages and duplicates."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from operator import eq
from pathlib import Path
from typing import Any
from unicodedata import normalize as unicode_form

import regex

from ...base.errors import reraise_as_value_error
from ...base.formats import file_format
from ...base.languages import without_region
from ...base.streams import check_readable
from ...configuration_random_transformer import is_number
from ...data.lengths import TOO_LONG, UNEQUAL, LengthLimits
from ...data.readers import Columns, read_columns, read_texts
from ...data.sources import SIDES
from ...data.words import LETTER, LETTERS, WORD, text_digest, words_digest
from ...inputs_random_transformer import check_choice, drop_none
from ...tokenization_random_transformer import has_letters, is_blank, is_iterable_of_texts, unicode_error

# Reasons to drop a pair, in the order of the filters; those of lengths are in `lengths`.
COPY_REASON = "the target is a copy of the source"
SCRIPT_REASON = "{side} in another script"
LANGUAGE = "{side} in another language"
EXCLUDED = "{side} in an excluded file"
DUPLICATE = "a duplicate of an earlier pair"

NORMALIZATION_CHOICES = ("NFC", "off")
COPIES = ("near", "exact", "off")
DUPLICATES = ("pair", "source", "target", "off")
# A text is dropped if another language has this probability. Probabilities of short texts are smaller.
MIN_LANGUAGE_PROBABILITY = 0.8

Filter = Callable[[str, str], str | None]  # the reason to drop a source and a target
Accepts = Callable[[str], bool]  # whether a text is kept
Scripts = dict[str, list[str]]  # the accepted scripts of the sides "source" and "target"; empty for all scripts


@dataclass(frozen=True)
class CleaningOptions:
    """Options of the filters. Each filter can be turned off.

    Args:
        normalization: `NFC` normalizes texts as new tokenizers do (see `text_normalizer`), and removes the quotes of
            CSV cells; `off` does not change texts.
        copies: `near` drops a pair whose target has the same words as the source, regardless of case and punctuation;
            `exact` only if both texts are equal; `off` keeps both. Texts without letters, such as numbers, are kept.
        duplicates: `pair` drops a pair that occurred before; `source` or `target` drops a pair whose source or target
            occurred before; `off` keeps them. Texts are compared exactly, by a hash of 64 bits (about 100 bytes of
            memory per pair). Two of n different texts have the same hash with a probability of n² / 2^65: 0.0003 for a
            hundred million.
        max_length: drop a pair with a longer source or target, in characters; `None` for no limit.
        max_length_ratio: drop a pair if one side is more than this many times as long as the other (9 is the default
            of Moses' `clean-corpus-n`); `None` for no limit.
        min_script_share: drop a pair if a smaller share of the letters of a side is in the scripts of its language,
            0 to 1; `None` to turn off.
        source_script: Unicode scripts of the source language, such as `Latin`, or `Han` and `Hiragana` (default: those
            of at least 10% of the letters of the first 10,000 pairs that remain).
        target_script: Unicode scripts of the target language (default: selected in the same way).
        source_lang: code of the source language, such as `en` or `pt-BR`; drop a pair if py3langid, an optional
            package, identifies the source as another language (default: no such check).
        target_lang: code of the target language, which is used in the same way.
        exclude: files with one text per line or with pairs, such as a test set; drop a pair with one of their texts,
            regardless of case, punctuation and Unicode form.

    Raises:
        ValueError: an option is invalid; the message names it.
    """

    normalization: str = "NFC"
    copies: str = "near"
    duplicates: str = "pair"
    max_length: int | None = 1000
    max_length_ratio: float | None = 9.0
    min_script_share: float | None = 0.5
    source_script: Sequence[str] | None = None
    target_script: Sequence[str] | None = None
    source_lang: str | None = None
    target_lang: str | None = None
    exclude: Sequence[str] | None = None

    def __post_init__(self) -> None:
        check_choice(NORMALIZATION_CHOICES, normalization=self.normalization)
        check_choice(COPIES, copies=self.copies)
        check_choice(DUPLICATES, duplicates=self.duplicates)
        if self.exclude is not None and not is_iterable_of_texts(self.exclude):
            raise ValueError(f"exclude must be a list of files, got {self.exclude!r}.")
        for path in self.exclude or ():
            check_readable("exclude", path, repeatedly=True)
        for name, limit in drop_none(max_length=self.max_length, max_length_ratio=self.max_length_ratio).items():
            if not is_number(limit) or not limit >= 1:  # rejects NaN too
                raise ValueError(f"{name} must be at least 1 or None, got {limit!r}.")
        share = self.min_script_share
        if share is not None and not (is_number(share) and 0 <= share <= 1):
            raise ValueError(f"min_script_share must be from 0 to 1, got {share!r}.")
        for name, scripts in drop_none(source_script=self.source_script, target_script=self.target_script).items():
            if self.min_script_share is None:
                raise ValueError(f"{name} must be unset without min_script_share, got {scripts!r}.")
            with reraise_as_value_error(f"{name} must be a list of Unicode scripts, such as Latin, got {scripts!r}"):
                regex.compile("|".join(rf"\p{{Script={script}}}" for script in [*scripts] or [""]))

    @cached_property
    def excluded_keys(self) -> frozenset[bytes]:
        """The keys of the texts in the files of `exclude`, which are read once for all passes over a corpus."""
        return frozenset(words_digest(text) for path in self.exclude or () for text in excluded_texts(path))


def filters_of(options: CleaningOptions, scripts: Scripts) -> Iterator[Filter]:
    """The filters in their order, each a function of source and target that returns the reason to drop a pair.

    Args:
        options: the options.
        scripts: the accepted scripts.

    Raises:
        ValueError: py3langid is not installed or does not know a language.
    """
    if options.copies != "off":
        are_equal = have_same_words if options.copies == "near" else eq
        yield lambda source, target: COPY_REASON if are_equal(source, target) and has_letters(source) else None
    limits = LengthLimits(options.max_length, options.max_length, options.max_length_ratio)
    yield lambda source, target: TOO_LONG if limits.are_exceeded(len(source), len(target)) else None
    yield lambda source, target: UNEQUAL if limits.is_unequal(len(source), len(target)) else None
    for side, names in scripts.items():
        if names and options.min_script_share:
            yield filter_of_side(side, script_filter(names, options.min_script_share), SCRIPT_REASON)
    for side, language in drop_none(source=options.source_lang, target=options.target_lang).items():
        yield filter_of_side(side, language_filter(language, f"{side}_lang"), LANGUAGE)
    if options.exclude:
        for side in SIDES:
            yield filter_of_side(side, lambda text: words_digest(text) not in options.excluded_keys, EXCLUDED)
    if options.duplicates != "off":
        yield duplicate_filter(options.duplicates)


def filter_of_side(side: str, accepts: Accepts, reason: str) -> Filter:
    reason = reason.format(side=side)
    if side == "source":
        return lambda source, _: None if accepts(source) else reason
    return lambda _, target: None if accepts(target) else reason


def have_same_words(source: str, target: str) -> bool:
    """Whether texts have the same words, regardless of case and punctuation."""
    source = unicode_form("NFC", source.casefold())
    target = unicode_form("NFC", target.casefold())
    # The first words of most pairs differ, so that the complete comparison is rare.
    first = WORD.search(source)
    second = WORD.search(target)
    has_same_start = first is not None and second is not None and first[0] == second[0]
    return has_same_start and WORD.findall(source) == WORD.findall(target)


def duplicate_filter(compared: str) -> Filter:
    """A filter that remembers the pairs that it keeps; `compared` is `"pair"`, `"source"` or `"target"`."""
    seen: set[bytes] = set()

    def check(source: str, target: str) -> str | None:
        text = source if compared == "source" else target
        if compared == "pair":  # the length makes the end of the source unambiguous for texts with any characters
            text = f"{len(source)} {source}{target}"
        key = text_digest(text)
        if key in seen:
            return DUPLICATE
        seen.add(key)
        return None

    return check


def excluded_texts(path: str) -> Iterator[str]:
    """The texts of a file with one text per line, or of both sides of a file with pairs."""
    if file_format(path) == "text":
        yield from (text for text in read_texts(path) if not is_blank(text))
        return
    for number, texts in read_columns(Path(path), Columns(SIDES)):
        if isinstance(texts, str):
            raise ValueError(f"{path} must have a source and a target on each line, but line {number} has not.")
        if any(map(unicode_error, texts)):
            raise ValueError(f"{path} must be UTF-8 text, but line {number} is not.")
        yield from texts


def script_filter(scripts: Sequence[str], min_share: float) -> Accepts:
    """A function that accepts texts with at least a share of their letters in these scripts, or without letters.

    Args:
        scripts: names of Unicode scripts.
        min_share: the least share of letters, 0 to 1.
    """
    expected = "".join(rf"\p{{Script={name}}}" for name in scripts)
    foreign_letter = regex.compile(rf"[{LETTER}--[{expected}]]", regex.V1)
    accepted: set[str] = set()  # characters that are not foreign letters, as far as they have occurred

    def accepts(text: str) -> bool:
        if accepted.issuperset(text):
            return True
        accepted.update(character for character in {*text} if not foreign_letter.match(character))
        foreign = sum(character not in accepted for character in text)
        return not foreign or 1 - foreign / len(LETTERS.findall(text)) >= min_share

    return accepts


def language_filter(language: str, argument: str) -> Accepts:
    """A function that accepts texts unless py3langid identifies them as another language.

    py3langid (BSD license, a model of 139 languages in 5 MB, no download) is a naive Bayes classifier of byte
    sequences (Lui and Baldwin 2012). docs/how_to/clean.md has measurements. Short texts are accepted: their
    probabilities are small.

    Args:
        language: code of the language, in any case and also with a region or a script, which are ignored.
        argument: name of the argument in error messages.

    Raises:
        ValueError: py3langid is not installed or does not know the language.
    """
    install = "pip install 'random-transformer[langid]'"
    with reraise_as_value_error(f"{argument}={language!r} requires py3langid: {install}"):
        identifier = language_identifier()
    expected = without_region(language)
    check_choice(sorted(identifier.labels), **{argument: expected})

    def accepts(text: str) -> bool:
        label, probability = identifier.classify(text)
        return label == expected or probability < MIN_LANGUAGE_PROBABILITY

    return accepts


@lru_cache(maxsize=1)  # loading takes seconds
def language_identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
