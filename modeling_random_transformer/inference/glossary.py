"""Required target phrases: the terms of a glossary, and the translations that lack them.

No search of its own is needed. Another candidate of beam search may have a term. Otherwise it may follow each word of
the translation: the model scores these beginnings, `generate()` continues the best ones, and the model chooses among
the results.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from os import PathLike
from pathlib import Path
from statistics import fmean
from typing import Any

from ..base.errors import format_names, format_value
from ..data.readers import Columns, is_utf8, read_columns
from ..inputs_random_transformer import TextError, longest_target, name_lines_in_errors, renumber_errors
from ..pipeline_random_transformer import Seq2SeqPipeline
from ..tokenization_random_transformer import normalize
from .markup import is_mark, unit_spans
from .scoring import Scorer
from .sentences import is_wide

ROUNDS = 3  # each adds at least one term to a translation, or is its last
CONTINUED = 4  # beginnings per translation and round
LISTED = 8  # candidates of beam search, of which one may have a term

Row = tuple[str, str]  # a text, and what its translation must begin with
Search = Callable[[list[Row], bool], list[list[Any]]]


class Glossary:
    """Source phrases and the target phrases that they require.

    A phrase occurs in a text as whole words, but not within a longer phrase of the glossary. A word in lower case
    matches any case, another word only its own: `"polish"` occurs in `"Polish it"`, `"Polish"` not in `"polish it"`.

    Args:
        terms: source phrase and target phrase of each term.

    Attributes:
        required: the number of texts so far that required each term, by its index.
        missing: the number of translations so far that lack it.

    Raises:
        ValueError: a phrase is not a string, or is blank.
    """

    def __init__(self, terms: Iterable[tuple[str, str]]):
        self.terms = [check_term(term, index) for index, term in enumerate(terms)]
        self.targets = [words(target) for _, target in self.terms]
        self.by_source: dict[tuple[str, ...], list[tuple[int, list[str]]]] = defaultdict(list)
        for number, (source, _) in enumerate(self.terms):
            phrase = words(source)
            self.by_source[tuple(map(str.lower, phrase))].append((number, phrase))
        self.longest = max(map(len, self.by_source), default=0)
        self.required: Counter[int] = Counter()
        self.missing: Counter[int] = Counter()

    @classmethod
    def read(cls, path: str | PathLike) -> "Glossary":
        """Read a file with a source phrase, a tab and a target phrase on each line.

        Raises:
            ValueError: a line is malformed, or there are none; the message names the file and the line.
            OSError: the file cannot be read.
        """
        rows = list(read_columns(Path(path), Columns(("source", "target"))))
        if not rows:
            raise ValueError(f"A glossary must have at least one term, got none in {path}.")
        with name_lines_in_errors(str(path)), renumber_errors([number - 1 for number, _ in rows]):
            return cls(row for _, row in rows)  # type: ignore[misc]

    def terms_of(self, text: str) -> list[int]:
        """The indices of the terms whose source phrase occurs in a text."""
        source, found, start = words(text), dict[int, None](), 0
        lower = [word.lower() for word in source]
        while start < len(source):
            for length in range(min(self.longest, len(source) - start), 0, -1):
                known = self.by_source.get(tuple(lower[start : start + length]), ())
                if here := [number for number, phrase in known if begins_with(source[start:], phrase)]:
                    break
            else:
                here, length = [], 1
            found |= dict.fromkeys(here)
            start += length
        return list(found)

    def lacking(self, terms: Iterable[int], translation: str) -> list[int]:
        """Those of some terms whose target phrase does not occur in a translation."""
        target = words(translation)
        ends = [target[start:] for start in range(len(target))]
        return [number for number in terms if not any(begins_with(end, self.targets[number]) for end in ends)]

    def report(self) -> str:
        """One line about the terms of all texts so far."""
        required, missing = self.required.total(), self.missing.total()
        parts = [f"{required - missing} of {required} required terms are in the translations"]
        if missing:
            counts = (f"{self.terms[number][1]} ({count})" for number, count in self.missing.most_common())
            parts.append(f"not placed: {format_names(counts)}")
        if unused := [source for number, (source, _) in enumerate(self.terms) if number not in self.required]:
            parts.append(f"{len(unused)} of {len(self.terms)} terms did not occur: {format_names(unused)}")
        return f"glossary: {'; '.join(parts)}"


def check_term(row: Any, index: int) -> tuple[str, str]:
    """A term; raises a `TextError` unless it is two phrases."""
    is_pair = not isinstance(row, str) and len(row) == 2 and all(isinstance(phrase, str) for phrase in row)
    if not is_pair or not all(words(phrase) and is_utf8(phrase) for phrase in row):
        raise TextError(index, f"a term must be source phrase, tab and target phrase, got {format_value(row)}.")
    return row[0].strip(), row[1].strip()


# Words


def words(text: str) -> list[str]:
    """The words of a text and its other characters, normalized."""
    text = normalize(text)
    return [text[start:end] for start, end in unit_spans(text)]


def in_word(character: str) -> bool:
    """Whether a character is a letter, a digit or a combining mark."""
    return character.isalnum() or is_mark(character)


def begins_with(text: Sequence[str], phrase: Sequence[str]) -> bool:
    """Whether words begin with those of a phrase."""
    pairs = zip(phrase, text, strict=False)
    return len(phrase) <= len(text) and all(own in (word, word.lower()) for own, word in pairs)


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
    found = []
    for head in (text[:place] for place in places):
        space = " " if head and in_word(head[-1]) and not is_wide(head[-1]) else ""
        found.append(head + space + phrase)
    if text[:1].isupper():
        found[0] = phrase[:1].upper() + phrase[1:]
    return [head for head in found if head.startswith(prefix)]


# Placing terms


@dataclass(eq=False)
class Draft:
    """A text and its translation, which may lack terms.

    Attributes:
        text: the text.
        prefix: what its translation must begin with.
        terms: the indices of the required terms.
        best: the `Candidate`.
        missing: the indices of the terms that it lacks.
    """

    text: str
    prefix: str
    terms: list[int]
    best: Any
    missing: list[int]


def place_terms(
    pipe: Seq2SeqPipeline, options: Any, rows: Iterable[Row], found: Iterable[Any], search: Search
) -> list[Any]:
    """The `Candidate` of each text, or another one that lacks fewer terms.

    Args:
        pipe: the pipeline that translated the texts.
        options: its `TranslationOptions`.
        rows: the texts.
        found: the `Candidate` of each text.
        search: translates texts with prefixes; returns `LISTED` candidates of each text, or one.
    """
    glossary: Glossary = options.glossary
    drafts = []
    for (text, prefix), best in zip(rows, found, strict=True):
        terms = glossary.terms_of(text)
        drafts.append(Draft(text, prefix, terms, best, glossary.lacking(terms, best.translation)))
    if pending := [draft for draft in drafts if draft.missing]:
        scoring = {"max_batch_tokens": options.max_batch_tokens, **options.languages(pipe.tokenizer)}
        scorer = Scorer(pipe.model, pipe.tokenizer, token_scores=True, truncation=True, **scoring)
        for draft, listed in zip(pending, search([(draft.text, draft.prefix) for draft in pending], True), strict=True):
            # The first of those that lack the fewest terms
            lacking = [(glossary.lacking(draft.terms, each.translation), each) for each in (draft.best, *listed)]
            draft.missing, draft.best = min(lacking, key=lambda pair: len(pair[0]))
        pending = [draft for draft in pending if draft.missing]
        for _ in range(ROUNDS):
            pending = improve(pending, options, scorer, search)
    for draft in drafts:
        glossary.required.update(draft.terms)
        glossary.missing.update(draft.missing)
    return [draft.best for draft in drafts]


def improve(drafts: Sequence[Draft], options: Any, scorer: Scorer, search: Search) -> list[Draft]:
    """Replace translations by ones that lack fewer terms; returns the drafts of those that still lack some."""
    heads = promising(drafts, options, scorer)
    rows = [(draft.text, head) for draft, head in heads]
    candidates = [best for [best] in search(rows, False)]
    pairs = [(text, each.translation) for (text, _), each in zip(rows, candidates, strict=True)]
    scores = scorer(pairs, 0, lambda _: None)
    ranks = {draft: (len(draft.missing), -inf) for draft in drafts}
    for (draft, _), candidate, score in zip(heads, candidates, scores, strict=True):
        missing = options.glossary.lacking(draft.terms, candidate.translation)
        # The score of beam search; without beams, the length penalty applies too.
        rank = len(missing), -score.log_probability / score.tokens**options.length_penalty
        if rank < ranks[draft]:
            ranks[draft], draft.best, draft.missing = rank, candidate, missing
    return [draft for draft, (count, value) in ranks.items() if count and value > -inf]


def promising(drafts: Sequence[Draft], options: Any, scorer: Scorer) -> list[tuple[Draft, str]]:
    """The beginnings with the most probable tokens on average, of those that leave tokens to generate."""
    tried = [
        (draft, head)
        for draft in drafts
        for number in draft.missing
        for head in beginnings(draft.best.translation, options.glossary.terms[number][1], draft.prefix)
    ]
    scores = scorer([(draft.text, head) for draft, head in tried], 0, lambda _: None)
    ranked = defaultdict(list)
    for (draft, head), score in zip(tried, scores, strict=True):
        if 1 < score.tokens < longest_target(0, scorer.model.config, options.max_new_tokens, score.tokens):
            ranked[draft].append((fmean(score.token_log_probabilities[:-1]), head))  # without the end token
    return [(draft, head) for draft in ranked for _, head in sorted(ranked[draft], reverse=True)[:CONTINUED]]
