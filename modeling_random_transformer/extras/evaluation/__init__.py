"""BLEU and chrF++ of files and of published variants, and as metrics of the package evaluate.

    score_variant(translations, references, "moses-lowercased", "de")
    load_metric("bleu").compute(predictions=translations, references=references)

Requires the extra `train`. Scores of texts: `inference.evaluation`.
"""

from .metric import load_metric
from .variants import VARIANTS, evaluate_file, moses_tokenizer, score_variant

__all__ = ["VARIANTS", "evaluate_file", "load_metric", "moses_tokenizer", "score_variant"]
