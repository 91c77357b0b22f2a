"""BLEU and chrF++ as metrics of the package evaluate."""

from tempfile import TemporaryDirectory
from typing import Any

from ...base.errors import reraise_as_value_error
from ...inference.evaluation import METRICS, REQUIRED_PACKAGES, corpus_score, make_scorers, to_text_lists
from ...inputs_random_transformer import check_choice


def load_metric(name: str) -> Any:
    """Load `"bleu"` or `"chrf"` (chrF++) as an `evaluate.Metric`, without network access and without files.

    Its `compute(predictions=…, references=…, **options)` returns what `score` returns for this metric.

    Raises:
        ValueError: there is no such metric, or the extra `train` is not installed.
    """
    check_choice(METRICS, name=name)
    with reraise_as_value_error(REQUIRED_PACKAGES):
        import evaluate
        from datasets import Features, Value
        from datasets import Sequence as ListOf

    class CorpusMetric(evaluate.Metric):
        """A corpus-level score by sacrebleu, 0 to 100."""

        def _info(self) -> Any:
            return evaluate.MetricInfo(
                description="Computed by sacrebleu, which tokenizes the texts itself.",
                citation="Post (2018), A Call for Clarity in Reporting BLEU Scores, https://aclanthology.org/W18-6319",
                features=Features({"predictions": Value("string"), "references": ListOf(Value("string"))}),
            )

        def add_batch(self, *, predictions: Any = None, references: Any = None, **kwargs: Any) -> None:
            """Add predictions, and one reference or a list of references for each."""
            predictions, references = to_text_lists(predictions, references)
            super().add_batch(predictions=predictions, references=references, **kwargs)

        def add(self, *, prediction: Any = None, reference: Any = None, **kwargs: Any) -> None:
            """Add one prediction and its reference or references."""
            self.add_batch(predictions=[prediction], references=[reference], **kwargs)

        def _compute(self, *, predictions: list[str], references: list[list[str]], **options: Any) -> dict[str, Any]:
            return corpus_score(name, make_scorers(name, options)[name], predictions, references)

    CorpusMetric.__name__ = name.capitalize()  # the name of the metric
    # evaluate creates a folder for every metric, which a metric that keeps its texts in memory does not use.
    with TemporaryDirectory() as folder:
        return CorpusMetric(cache_dir=folder, keep_in_memory=True)
