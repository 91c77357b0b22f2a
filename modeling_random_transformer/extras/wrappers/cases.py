"""Translates texts in capitals or in title case as ordinary texts, and gives the translations the same case.

Sentences in lower case are translated as ordinary ones too, and their translations are ordinary.

Training sets contain few such texts, and the vocabulary splits their words into letters.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from string import capwords

from transformers import PreTrainedTokenizerBase

from ...base.progress import Update
from ...inference.candidates import Candidate, PrefixedText, TranslateRows

CASED_WORD = re.compile(r"[^\W\d_]+(?:['\u2019][^\W\d_]+)*")
FIRST_LETTER = re.compile(r"^[\W_]*[^\W\d_]")  # the first letter, if the text does not begin with a number
# Texts with fewer words may be abbreviations, or names.
WORDS_IN_CAPITALS, WORDS_IN_TITLE_CASE = 2, 5
SENTENCE_IN_LOWER_CASE = 4  # fewer words, or words without a final punctuation mark, may be a part of a sentence
FINAL_MARKS = (*".!?…",)


def case_of(text: str) -> Callable[[str], str] | None:
    """The function that writes a text in the case of this one; `None` for ordinary texts."""
    words = CASED_WORD.findall(text)
    if len(words) >= SENTENCE_IN_LOWER_CASE and text.islower() and text.rstrip().endswith(FINAL_MARKS):
        return str  # the translation as it is
    if len(words) >= WORDS_IN_CAPITALS and text.isupper():
        return str.upper
    if len(words) >= WORDS_IN_TITLE_CASE and all(word[0].isupper() and word == word.capitalize() for word in words):
        return partial(capwords, sep=" ")
    return None


@dataclass(frozen=True)
class CaseTranslator:
    """Translates by another function; texts in capitals, in title case and in lower case in ordinary case.

    Attributes:
        translate_rows: translates texts.
        tokenizer: the tokenizer, whose vocabulary has words in their usual case.
    """

    translate_rows: TranslateRows
    tokenizer: PreTrainedTokenizerBase

    def __call__(self, rows: Sequence[PrefixedText], first: int, update: Update) -> list[list[Candidate]]:
        """The candidates of each row. Candidates of a row with a prefix are in the case of the prefix."""
        cases = []
        ordinary = []
        for text, prefix in rows:
            case = None if prefix else case_of(text)
            cases.append(case)
            ordinary.append(PrefixedText(text if case is None else self.in_ordinary_case(text), prefix))
        candidates = self.translate_rows(ordinary, first, update)
        for index, case in enumerate(cases):
            if case is not None:
                candidates[index] = [in_case(candidate, case) for candidate in candidates[index]]
        return candidates

    def in_ordinary_case(self, text: str) -> str:
        """A text with each word in its usual case, and its first one with a capital if the vocabulary has capitals."""
        text = CASED_WORD.sub(self.usual_word, text)
        if not self.has_capitals:
            return text
        return FIRST_LETTER.sub(lambda match: match[0].upper(), text)

    @cached_property
    def has_capitals(self) -> bool:
        """Whether a token begins with a capital and a small letter; none does in the vocabulary of lower-case texts."""
        tokenizer = self.tokenizer
        texts = (tokenizer.convert_tokens_to_string([token]).strip() for token in tokenizer.get_vocab())
        return any(text[:1].isupper() and text[1:2].islower() for text in texts)

    def usual_word(self, match: re.Match[str]) -> str:
        """A word in lower case, or with capitals if it then has fewer tokens, such as names and German nouns."""
        word = match[0]
        return min((word.lower(), word.capitalize(), word), key=self.count_tokens)

    def count_tokens(self, word: str) -> int:
        """The number of tokens of a word within a text."""
        return len(self.tokenizer.tokenize(f" {word}"))


def in_case(candidate: Candidate, case: Callable[[str], str]) -> Candidate:
    """A candidate in another case."""
    words = [(case(word), probability) for word, probability in candidate.words]
    return replace(candidate, translation=case(candidate.translation), words=words)
