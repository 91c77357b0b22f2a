"""What the functions that translate texts have in common: each gets rows and returns the candidates of each row."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ..base.progress import Update

Row = tuple[str, str]  # a text, and what its translation must begin with


@dataclass(frozen=True, slots=True)
class Candidate:
    """A translation.

    Attributes:
        translation: the text.
        score: see `return_scores` of the pipeline.
        tokens: the generated tokens with special ones; empty for a blank text, which is not passed to the model.
        problems: what is suspicious in it, see `PROBLEMS` in `extras/wrappers/problems.py`, if that was examined. It is
            doubtful if there are any.
        confidence: the probability that the translation is better than half of those of a validation set, 0 to 1;
            `None` if it was not requested, or the model has not translated the text.
        words: each word and its probability after those before it, with a confidence.
    """

    translation: str
    score: float = 0.0
    tokens: list[str] = field(default_factory=list, compare=False, repr=False)
    problems: list[str] = field(default_factory=list, compare=False)
    confidence: float | None = field(default=None, compare=False)
    words: list[tuple[str, float]] = field(default_factory=list, compare=False, repr=False)


# Called with rows, the index of the first one in its file or stream, and a function that counts finished rows. Returns
# the candidates of each row, the best first.
TranslateRows = Callable[[Sequence[Row], int, Update], list[list[Candidate]]]
