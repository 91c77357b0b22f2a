"""Replaces translations with problems by another hypothesis, a search without repetitions, or translated clauses."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...base.progress import Update
from ...inference.candidates import Candidate, PrefixedText, TranslateRows
from ...inputs_random_transformer import renumber_errors
from .problems import NUMBERS, Detector

HYPOTHESES = 4  # hypotheses per search
WITHOUT_REPETITIONS = {"no_repeat_ngram_size": 3}  # at most three equal tokens follow each other
WITHOUT_LOOPS = {"no_repeat_ngram_size": 2}  # at most two equal tokens follow each other
WITHOUT_EQUAL_TOKENS = {"no_repeat_ngram_size": 1}
CLAUSE_TOKENS = 16  # length of the parts of a sentence that are translated separately


@dataclass(frozen=True)
class RepairingTranslator:
    """Translates by another function, and again by the remedies where the detector finds problems.

    The best translation is replaced by the first one without problems, and if there is none, by the first one with the
    fewest. Its problems are then in `Candidate.problems`.

    Attributes:
        translate_rows: translates texts.
        detect: finds problems.
        remedies: translate the texts whose translations have problems, in this order.
    """

    translate_rows: TranslateRows
    detect: Detector
    remedies: Sequence[TranslateRows]

    def __call__(self, rows: Sequence[PrefixedText], first: int, update: Update) -> list[list[Candidate]]:
        """The candidates of each row. The best candidate has no problems, if possible."""
        translated = self.translate_rows(rows, first, update)
        pairs = zip(rows, translated, strict=True)
        best = [self.examined(text, candidates[0]) for (text, _), candidates in pairs]
        for remedy in self.remedies:
            pending = [index for index, candidate in enumerate(best) if candidate.problems]
            if not pending:
                break
            with renumber_errors(pending):
                alternatives = remedy([rows[index] for index in pending], first, lambda _: None)
            for index, candidates in zip(pending, alternatives, strict=True):
                text, _ = rows[index]
                examined = [self.examined(text, candidate) for candidate in candidates]
                best[index] = min([best[index], *examined], key=problem_counts)
        return list(map(with_first, best, translated))

    def examined(self, text: str, candidate: Candidate) -> Candidate:
        """A candidate with its problems."""
        return replace(candidate, problems=self.detect(text, candidate))


def with_first(best: Candidate, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The same number of candidates, with `best` as the first."""
    others = [candidate for candidate in candidates if candidate.translation != best.translation]
    return [best, *others][: len(candidates)]


def problem_counts(candidate: Candidate) -> tuple[int, int]:
    """The numbers of other problems and of missing numbers of a candidate, in the order of their weight."""
    lost = candidate.problems.count(NUMBERS)
    return len(candidate.problems) - lost, lost
