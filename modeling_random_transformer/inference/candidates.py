"""The common interface of functions that translate texts. They get texts and return the candidates of each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..base.progress import Update


class PrefixedText(NamedTuple):
    """A text, and the prefix that its translation must have; `""` for none."""

    text: str
    prefix: str


@dataclass(frozen=True, slots=True)
class Candidate:
    """A translation.

    Attributes:
        translation: the text.
        score: see `return_scores` of the pipeline.
        tokens: the generated tokens, including special tokens; empty for a text that the model has not translated: a
            blank one, or one without letters, which is copied. "When a translation is empty" in
            `docs/how_to/translate.md` explains them.
        problems: the problems that were detected in the translation, see `PROBLEMS` in `extras/wrappers/problems.py`.
            Empty if there are none, or if they were not examined.
        confidence: the probability that the translation is better than half of the translations of a validation set, 0
            to 1; `None` if it was not requested, or the model has not translated the text.
        words: each word and its probability given the previous words, if the confidence was requested.
    """

    translation: str
    score: float = 0.0
    tokens: list[str] = field(default_factory=list, compare=False, repr=False)
    problems: list[str] = field(default_factory=list, compare=False)
    confidence: float | None = field(default=None, compare=False)
    words: list[tuple[str, float]] = field(default_factory=list, compare=False, repr=False)


# Called with rows, the index of the first row in its file or stream, and a function that counts finished rows. Returns
# the candidates of each row, the best first.
TranslateRows = Callable[[Sequence[PrefixedText], int, Update], list[list[Candidate]]]
