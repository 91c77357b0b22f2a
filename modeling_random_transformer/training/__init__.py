"""Training translation models from scratch: the paper's recipe on transformers' Trainer and Accelerate."""

from ..data.batches import TokenBudgetSampler
from ..data.sources import DatasetText, ParallelText
from ..data.streaming import TokenBudgetStream
from ..data.tokenization import tokenize_pairs
from ..data.validation import ValidationReport, load_pairs, validate
from .arguments import DataArguments, ModelArguments
from .checkpoints import average_weights, is_complete, load_average, newest_complete
from .estimation import DryRun, dry_run
from .loss import SmoothedCrossEntropy
from .manifest import RunResult
from .recipe import TranslationTrainingArguments, paper_peak_rate
from .run import train_translation
from .trainer import TranslationTrainer

__all__ = [
    "DataArguments",
    "DatasetText",
    "DryRun",
    "ModelArguments",
    "ParallelText",
    "RunResult",
    "SmoothedCrossEntropy",
    "TokenBudgetSampler",
    "TokenBudgetStream",
    "TranslationTrainer",
    "TranslationTrainingArguments",
    "ValidationReport",
    "average_weights",
    "dry_run",
    "is_complete",
    "load_average",
    "load_pairs",
    "newest_complete",
    "paper_peak_rate",
    "tokenize_pairs",
    "train_translation",
    "validate",
]
