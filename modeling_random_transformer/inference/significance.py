"""Whether a test set shows that one system translates better than another: sacrebleu's paired tests.

The functions need the extra `train`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..utils.text import markdown_table
from .evaluation import check_texts, make_scorers

LEVEL = 0.05  # differences with a larger p-value are not significant
TESTS = {"bs": "paired bootstrap", "ar": "approximate randomization"}


@dataclass
class MetricComparison:
    """The comparison of two systems by one metric.

    Attributes:
        metric: its name.
        scores: the scores of both systems, 0 to 100.
        intervals: half of the width of the 95% confidence intervals, by the bootstrap.
        p_values: of each test: how probable a difference at least as large is, if both systems are equally good.
        signature: sacrebleu's, of the bootstrap.
    """

    metric: str
    scores: tuple[float, float]
    intervals: tuple[float, float]
    p_values: dict[str, float]
    signature: str

    @property
    def is_significant(self) -> bool:
        """Whether the difference is significant in both tests. They do not count a difference of 0 as chance."""
        return self.scores[0] != self.scores[1] and max(self.p_values.values()) < LEVEL

    def row(self) -> tuple[str, ...]:
        """The columns of the table."""
        pairs = zip(self.scores, self.intervals, strict=True)
        difference = self.scores[1] - self.scores[0]
        values = (f"{value:.4f}" for value in self.p_values.values())
        return self.metric, *(f"{score:.1f} ± {width:.1f}" for score, width in pairs), f"{difference:+.1f}", *values

    def claim(self, names: Sequence[str]) -> str:
        """What the scores allow to claim about systems with these names."""
        best, other = names if self.scores[0] > self.scores[1] else reversed(names)
        if self.is_significant:
            return f"{self.metric}: {best} is better than {other} on texts like these (both tests, p < {LEVEL})."
        return f"{self.metric}: the test set does not show which system is better."


@dataclass
class Comparison:
    """The comparison of two systems; `str` is a table and the claims that it allows."""

    names: tuple[str, str]
    metrics: list[MetricComparison]

    def __str__(self) -> str:
        header = ("metric", *self.names, "difference", *(f"p, {name}" for name in TESTS.values()))
        claims = [each.claim(self.names) for each in self.metrics]
        limits = "The tests do not cover other domains, nor the variation between training runs with other seeds."
        table = markdown_table(header, [each.row() for each in self.metrics])
        return "\n".join([table, "", *claims, limits, *(each.signature for each in self.metrics)])


def compare_systems(
    first: Sequence[str],
    second: Sequence[str],
    references: Sequence[str],
    names: tuple[str, str] = ("A", "B"),
    **options: str | bool,
) -> Comparison:
    """Compare the translations of two systems by BLEU and chrF++.

    Both tests are sacrebleu's: paired bootstrap with 1,000 samples (Koehn 2004), and approximate randomization with
    10,000 (Riezler and Maxwell 2005).

    Args:
        first: the translations of a system.
        second: those of the other, of the same texts.
        references: their reference translations.
        names: the names of the systems.
        **options: options of the metrics, as for `score`.

    Raises:
        ValueError: the numbers of texts differ, an option is invalid, or sacrebleu is not installed.
    """
    scorers = make_scorers(("bleu", "chrf"), options)
    from sacrebleu.significance import PairedTest  # an extra

    systems: Any = [
        (name, check_texts(texts, references)[0]) for name, texts in zip(names, (first, second), strict=True)
    ]
    results: dict[str, Any] = {test: PairedTest(systems, scorers, [[*references]], test_type=test)() for test in TESTS}
    signatures, scores = results["bs"]
    return Comparison(
        names,
        [
            MetricComparison(
                metric,
                scores=(one.score, other.score),
                intervals=(one.ci, other.ci),
                p_values={test: float(found[metric][1].p_value) for test, (_, found) in results.items()},
                signature=signatures[metric].format(),
            )
            for metric, (one, other) in scores.items()
            if metric != "System"
        ],
    )
