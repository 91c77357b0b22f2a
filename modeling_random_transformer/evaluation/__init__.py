"""BLEU and chrF++ for translations, computed by sacrebleu, as `evaluate` metrics and for transformers' Seq2SeqTrainer.

Both metrics lie in this folder and are found without the Hub: `load_metric("bleu")`, or `evaluate.load` with the path
of the folder `bleu`. They need the extra `train`; importing this package does not.
"""

from .scoring import METRICS, load_metric, score
from .trainer_metrics import translation_metrics

__all__ = ["METRICS", "load_metric", "score", "translation_metrics"]
