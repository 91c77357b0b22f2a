"""What BLEU and chrF++ share: texts are checked here, collected by evaluate and scored by sacrebleu."""

from abc import ABC, abstractmethod
from dataclasses import asdict, fields
from itertools import zip_longest
from typing import Any, ClassVar

import evaluate
from datasets import Features, Sequence, Value

from .checks import check_names, check_texts

# What `compute` takes: one reference for a prediction, or several.
FEATURES = [
    Features({"predictions": Value("string"), "references": Value("string")}),
    Features({"predictions": Value("string"), "references": Sequence(Value("string"))}),
]


class CorpusMetric(evaluate.Metric, ABC):  # abstract, so that evaluate.load does not take it for the metric itself
    """A score of a whole corpus, 0 to 100, by one of sacrebleu's metrics."""

    scorer_class: ClassVar[type]  # sacrebleu's
    options_class: ClassVar[type]  # a dataclass that checks its values: the keyword arguments of `scorer_class`
    details: ClassVar[tuple[str, ...]]  # what to report of sacrebleu's result beside the score

    @abstractmethod
    def _info(self) -> evaluate.MetricInfo:
        """The metric's description and citation, and what it takes and returns."""

    @classmethod
    def option_names(cls) -> list[str]:
        """The keyword arguments that `compute` takes beside the texts."""
        return [field.name for field in fields(cls.options_class)]

    @classmethod
    def scorer(cls, **options: Any) -> Any:
        """sacrebleu's metric with these options.

        Raises:
            ValueError: there is no such option, or its value is not allowed.
            ImportError, RuntimeError: sacrebleu needs a further package for them; its message says which.
        """
        check_names("options", options, cls.option_names())
        return cls.scorer_class(**asdict(cls.options_class(**options)))

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add predictions and their references, to be scored by a later `compute`.

        Raises:
            ValueError: their numbers differ, or they are not strings.
        """
        predictions, references = check_texts(predictions, references)
        super().add_batch(predictions=predictions, references=references, **kwargs)

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one prediction and its reference or references, to be scored by a later `compute`.

        Raises:
            ValueError: they are not strings.
        """
        self.add_batch(predictions=[prediction], references=[reference], **kwargs)

    def compute(self, *, predictions: Any = None, references: Any = None, **options: Any) -> Any:
        """Score all texts added so far and those given here, as one corpus.

        Raises:
            ValueError: there are no texts, or they or an option are wrong; what was added before is kept.
        """
        self.scorer(**options)  # refuses wrong options while the texts are still there for another try
        if predictions is None and references is None and len(self) == 0:
            raise ValueError("predictions must be given, or added before, got none.")
        return super().compute(predictions=predictions, references=references, **options)

    def _compute(self, *, predictions: list[str], references: list[list[str]], **options: Any) -> dict[str, Any]:
        scorer = self.scorer(**options)
        # sacrebleu's command line strips the end of every line, but not all of its metrics do.
        predictions = [text.rstrip() for text in predictions]
        references = [[text.rstrip() for text in texts] for texts in references]
        # All first references, all second ones, …: `None` where a prediction has fewer than others.
        streams = [list(stream) for stream in zip_longest(*references)]
        result = scorer.corpus_score(predictions, streams)
        return {
            "score": float(result.score),
            "name": result.name,
            "signature": scorer.get_signature().format(),
            **{name: getattr(result, name) for name in self.details},
        }
