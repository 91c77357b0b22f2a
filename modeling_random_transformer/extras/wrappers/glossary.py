"""Glossaries with required target phrases, and the replacement of translations that lack them.

No search of its own is needed. Another candidate of beam search may have a term. Otherwise it may follow each word of
the translation: the model scores these beginnings, `generate()` continues the best ones, and the model chooses among
the results.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any

from ...base.compressed_files import open_binary
from ...base.errors import format_names, format_value
from ...base.files import StrPath
from ...base.progress import Update
from ...data.sources import Pair
from ...inference.candidates import Candidate, PrefixedText, TranslateRows
from ...inference.scoring import PairScore
from ...inputs_random_transformer import TextError, name_lines_in_errors
from ...tokenization_random_transformer import normalize, read_lines, unicode_error
from ..characters import is_mark, is_wide
from ..pairs.placement import unit_spans

ROUNDS = 3  # each adds at least one term to a translation, or is its last
CONTINUED_BEGINNINGS = 4  # beginnings per translation and round
LISTED = 8  # candidates of beam search, of which one may have a term


class Glossary:
    """Source phrases and the target phrases that they require.

    A phrase occurs in a text as whole words, but not within a longer phrase of the glossary. A word in lower case
    matches any case, another word only its own: `"polish"` occurs in `"Polish it"`, `"Polish"` not in `"polish it"`. Of
    two phrases that differ in case only, the one with more words in the case of the text occurs.

    Args:
        terms: source phrase and target phrase of each term.

    Attributes:
        required: the number of texts so far that required each term, by its index.
        missing: the number of translations so far that lack it.

    Raises:
        ValueError: a phrase is not a string, is blank, or is the source of two terms.
    """

    def __init__(self, terms: Iterable[tuple[str, str]]):
        self.terms = [check_term(term, index) for index, term in enumerate(terms)]
        self.sources = [units_of(source) for source, _ in self.terms]
        self.targets = [units_of(target) for _, target in self.terms]
        self.by_first_word: dict[str, list[int]] = defaultdict(list)
        for number, phrase in enumerate(self.sources):
            similar = self.by_first_word[phrase[0].lower()]
            for other in similar:
                if self.sources[other] == phrase:
                    source, _ = self.terms[number]
                    raise TextError(
                        number, f"a source phrase must be in one term, got {source!r}, as in term {other + 1}."
                    )
            similar.append(number)
        self.required: Counter[int] = Counter()
        self.missing: Counter[int] = Counter()

    @classmethod
    def read(cls, path: StrPath) -> "Glossary":
        """Read a file with a source phrase, a tab and a target phrase on each line.

        Raises:
            ValueError: a line is malformed or not UTF-8, or there are none; the message names the file and the line.
            OSError: the file cannot be read.
        """
        with open_binary(Path(path)) as file:
            rows = [line.split("\t") for line in read_lines(file, str(path))]
        if not rows:
            raise ValueError(f"A glossary must have at least one term, got none in {path}.")
        with name_lines_in_errors(str(path)):
            return cls(rows)  # type: ignore[arg-type]

    def terms_of(self, text: str) -> list[int]:
        """The indices of the terms whose source phrase occurs in a text."""
        source = units_of(text)
        numbers = []
        start = 0
        while start < len(source):
            number = self.longest_term(source, start)
            if number is None:
                start += 1
            else:
                numbers.append(number)
                start += len(self.sources[number])
        return list(dict.fromkeys(numbers))

    def longest_term(self, source: list[str], start: int) -> int | None:
        """The index of the longest term whose source phrase is at an index of words; `None` if there is none."""
        ranks = {}
        for number in self.by_first_word.get(source[start].lower(), ()):
            phrase = self.sources[number]
            if is_at(source, start, phrase):
                equal_words = sum(map(str.__eq__, phrase, source[start:]))
                ranks[number] = len(phrase), equal_words
        return max(ranks, key=ranks.__getitem__, default=None)

    def lacking(self, terms: Iterable[int], translation: str) -> list[int]:
        """The terms, of these, whose target phrase does not occur in a translation."""
        target = units_of(translation)
        lacking = []
        for number in terms:
            if not any(is_at(target, start, self.targets[number]) for start in range(len(target))):
                lacking.append(number)
        return lacking

    def report(self) -> str:
        """One line about the terms of all texts so far."""
        required = self.required.total()
        missing = self.missing.total()
        report = f"glossary: {required - missing} of {required} required terms are in the translations"
        if missing:
            counts = []
            for number, count in self.missing.most_common():
                _, target = self.terms[number]
                counts.append(f"{target} ({count})")
            report += f"; not placed: {format_names(counts)}"
        unused = [source for number, (source, _) in enumerate(self.terms) if number not in self.required]
        if unused:
            report += f"; {len(unused)} of {len(self.terms)} terms did not occur: {format_names(unused)}"
        return report


def check_term(term: Any, index: int) -> tuple[str, str]:
    """A term; raises a `TextError` unless it is two phrases."""
    if isinstance(term, list | tuple) and len(term) == 2 and all(map(is_phrase, term)):
        source, target = term
        return source.strip(), target.strip()
    raise TextError(index, f"a term must be source phrase, tab and target phrase, got {format_value(term)}.")


def is_phrase(text: Any) -> bool:
    """Whether a text is a string of Unicode characters with words."""
    return isinstance(text, str) and not unicode_error(text) and bool(units_of(text))


# Words


def units_of(text: str) -> list[str]:
    """The words of a text and its other characters, normalized."""
    text = normalize(text)
    return [text[start:end] for start, end in unit_spans(text)]


def in_word(character: str) -> bool:
    """Whether a character is a letter, a digit or a combining mark."""
    return character.isalnum() or is_mark(character)


def is_at(text: list[str], start: int, phrase: list[str]) -> bool:
    """Whether a text has the words of a phrase at an index. A lowercase word matches any case."""
    part = text[start : start + len(phrase)]
    if len(part) < len(phrase):
        return False
    return all(required in (word, word.lower()) for required, word in zip(phrase, part, strict=True))


def beginnings(translation: str, phrase: str, prefix: str) -> list[str]:
    """A phrase after each word of a translation, and after no word, with all words before it.

    Args:
        translation: the translation.
        phrase: the phrase; its first letter becomes that of a sentence if the translation begins with one.
        prefix: what the beginnings must begin with.
    """
    text = normalize(translation)
    places = [start for start, _ in unit_spans(text)]
    if not text or in_word(text[-1]):  # nothing follows a full stop
        places.append(len(text))
    heads = []
    for place in places:
        before = text[:place]
        last = before[-1:]
        space = " " if last and in_word(last) and not is_wide(last) else ""
        heads.append(before + space + phrase)
    if text[:1].isupper():
        heads[0] = phrase[:1].upper() + phrase[1:]
    return [head for head in heads if head.startswith(prefix)]


# Placing terms


@dataclass(eq=False)
class Draft:
    """A text and its translation, which may lack terms.

    Attributes:
        text: the text.
        prefix: the prefix of its translation.
        terms: the indices of the required terms.
        best: the translation.
        missing: the indices of the terms that it lacks.
    """

    text: str
    prefix: str
    terms: list[int]
    best: Candidate
    missing: list[int]


@dataclass(frozen=True)
class GlossaryTranslator:
    """Wraps another translator, and replaces translations that lack terms by translations that lack fewer.

    Attributes:
        glossary: the terms, and the counts of those that are required and missing.
        translate_rows: translates texts, and continues the beginnings of translations.
        list_candidates: returns `LISTED` candidates of each text.
        score: scores translations and their beginnings, with the scores of tokens.
        longest_target: the limit on the tokens of a translation that usually has a number of tokens.
        length_penalty: of the scores of translations.
    """

    glossary: Glossary
    translate_rows: TranslateRows
    list_candidates: TranslateRows
    score: Callable[[Sequence[Pair]], Sequence[PairScore]]
    longest_target: Callable[[int], int]
    length_penalty: float

    def __call__(self, rows: Sequence[PrefixedText], first: int, update: Update) -> list[list[Candidate]]:
        """One candidate of each row."""
        drafts = []
        for (text, prefix), [best] in zip(rows, self.translate_rows(rows, first, update), strict=True):
            terms = self.glossary.terms_of(text)
            missing = self.glossary.lacking(terms, best.translation)
            drafts.append(Draft(text, prefix, terms, best, missing))
        pending = [draft for draft in drafts if draft.missing]
        if pending:
            self.choose_listed(pending)
            pending = [draft for draft in pending if draft.missing]
        for _ in range(ROUNDS):
            if pending:
                pending = self.improve(pending)
        for draft in drafts:
            self.glossary.required.update(draft.terms)
            self.glossary.missing.update(draft.missing)
        return [[draft.best] for draft in drafts]

    def choose_listed(self, drafts: Sequence[Draft]) -> None:
        """Replace each translation by the first candidate of beam search that lacks the fewest terms."""
        rows = [PrefixedText(draft.text, draft.prefix) for draft in drafts]
        listed = self.list_candidates(rows, 0, lambda _: None)
        for draft, candidates in zip(drafts, listed, strict=True):
            for candidate in candidates:
                missing = self.glossary.lacking(draft.terms, candidate.translation)
                if len(missing) < len(draft.missing):
                    draft.best = candidate
                    draft.missing = missing

    def improve(self, drafts: Sequence[Draft]) -> list[Draft]:
        """Replace translations by translations that lack fewer terms. Returns the drafts that still lack terms."""
        heads = self.promising_beginnings(drafts)
        rows = [PrefixedText(draft.text, head) for draft, head in heads]
        candidates = [best for [best] in self.translate_rows(rows, 0, lambda _: None)]
        pairs = [(row.text, best.translation) for row, best in zip(rows, candidates, strict=True)]
        scores = self.score(pairs)
        ranks: dict[Draft, tuple[int, float]] = {}
        for (draft, _), candidate, score in zip(heads, candidates, scores, strict=True):
            missing = self.glossary.lacking(draft.terms, candidate.translation)
            # The score of beam search; without beams, the length penalty applies too.
            normalized = score.log_probability / score.tokens**self.length_penalty
            rank = len(missing), -normalized
            to_beat = ranks.get(draft, (len(draft.missing), -inf))
            if rank < to_beat:
                ranks[draft] = rank
                draft.best = candidate
                draft.missing = missing
        return [draft for draft in ranks if draft.missing]

    def promising_beginnings(self, drafts: Sequence[Draft]) -> list[tuple[Draft, str]]:
        """The beginnings with the highest mean log-probability that leave tokens to generate."""
        heads = []
        for draft in drafts:
            for number in draft.missing:
                _, phrase = self.glossary.terms[number]
                for head in beginnings(draft.best.translation, phrase, draft.prefix):
                    heads.append((draft, head))
        ranked = defaultdict(list)
        scores = self.score([(draft.text, head) for draft, head in heads])
        for (draft, head), score in zip(heads, scores, strict=True):
            # Not more tokens than a translation of this length may have: a term of 400 letters is no translation.
            if 1 < score.tokens < self.longest_target(len(draft.best.tokens)):
                token_scores = score.token_log_probabilities[:-1]  # type: ignore[index]  # excludes the end token
                ranked[draft].append((fmean(token_scores), head))
        promising = []
        for draft, scored in ranked.items():
            for _, head in sorted(scored, reverse=True)[:CONTINUED_BEGINNINGS]:
                promising.append((draft, head))
        return promising
