"""BLEU and chrF++ of translations: sacrebleu's scores in one call, in the Trainer and as `evaluate` metrics.

The functions need the extra `train`; importing this module does not.
"""

from tempfile import TemporaryDirectory
from typing import Any

from .scores import METRICS, check_choice, require_extra, score, translation_metrics

__all__ = ["METRICS", "load_metric", "score", "translation_metrics"]


def load_metric(name: str) -> Any:
    """Load `"bleu"` or `"chrf"` (chrF++) as an `evaluate.Metric`, without network access and without files.

    Its `compute(predictions=…, references=…, **options)` returns what `score` returns for this metric.

    Raises:
        ValueError: there is no such metric.
        ImportError: the extra `train` is not installed.
    """
    check_choice("name", name, METRICS)
    with require_extra():
        from . import metrics
    # evaluate creates a folder for every metric, which a metric that keeps its texts in memory does not use.
    with TemporaryDirectory() as folder:
        return getattr(metrics, name.capitalize())(cache_dir=folder, keep_in_memory=True)
