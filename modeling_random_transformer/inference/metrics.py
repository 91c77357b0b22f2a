"""BLEU and chrF++ as metrics of the `evaluate` library."""

from typing import Any, ClassVar

import evaluate
import sacrebleu
from datasets import Features, Sequence, Value

from .scores import check_texts, corpus_score, make_scorers


class CorpusMetric(evaluate.Metric):
    """A corpus-level score by sacrebleu, 0 to 100."""

    scorer_class: ClassVar[type]
    paper: ClassVar[tuple[str, str]]  # reference and URL

    def _info(self) -> evaluate.MetricInfo:
        reference, url = self.paper
        return evaluate.MetricInfo(
            description=f"{self.__doc__} Computed by sacrebleu, which tokenizes the texts itself.",
            citation=f"{reference}. Computed by sacrebleu: Post (2018), A Call for Clarity in Reporting BLEU Scores.",
            inputs_description=self.scorer_class.__doc__ or "",
            features=Features({"predictions": Value("string"), "references": Sequence(Value("string"))}),
            codebase_urls=["https://github.com/mjpost/sacrebleu"],
            reference_urls=[url, "https://aclanthology.org/W18-6319"],
        )

    def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
        """Add predictions, and one reference or a list of references for each.

        Raises:
            ValueError: their numbers differ, or they are not strings.
        """
        predictions, references = check_texts(predictions, references)
        super().add_batch(predictions=predictions, references=references, **kwargs)

    def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
        """Add one prediction and its reference or references; raises a `ValueError` if they are not strings."""
        self.add_batch(predictions=[prediction], references=[reference], **kwargs)

    def _compute(self, *, predictions: list[str], references: list[list[str]], **options: Any) -> dict[str, Any]:
        scorer = make_scorers(self.name, options)[self.name]
        return corpus_score(self.name, scorer, predictions, references)


class Bleu(CorpusMetric):
    """BLEU: the geometric mean of the precisions of word n-grams, n from 1 to 4, times a brevity penalty."""

    scorer_class = sacrebleu.BLEU
    paper = (
        "Papineni et al. (2002), BLEU: a Method for Automatic Evaluation of Machine Translation",
        "https://aclanthology.org/P02-1040",
    )


class Chrf(CorpusMetric):
    """chrF++: the F-score of character n-grams, n from 1 to 6, and of word unigrams and bigrams."""

    scorer_class = sacrebleu.CHRF
    paper = ("Popović (2017), chrF++: words helping character n-grams", "https://aclanthology.org/W17-4770")
