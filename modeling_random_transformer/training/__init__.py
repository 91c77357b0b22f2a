"""Training a translator from nothing: the paper's recipe on transformers' Trainer and Accelerate."""

from .averaging import average_weights, load_average
from .batches import TokenBudgetSampler
from .checkpoints import is_complete, newest_complete
from .corpus import ParallelText, Report, load_pairs, tokenize_pairs
from .loss import SmoothedCrossEntropy
from .recipe import TranslationTrainingArguments, paper_peak_rate
from .trainer import TranslationTrainer

__all__ = [
    "ParallelText",
    "Report",
    "SmoothedCrossEntropy",
    "TokenBudgetSampler",
    "TranslationTrainer",
    "TranslationTrainingArguments",
    "average_weights",
    "is_complete",
    "load_average",
    "load_pairs",
    "newest_complete",
    "paper_peak_rate",
    "tokenize_pairs",
]
