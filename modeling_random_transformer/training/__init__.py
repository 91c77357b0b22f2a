"""Training translation models from scratch: the paper's recipe on transformers' Trainer and Accelerate."""

from .arguments import DataArguments, ModelArguments
from .checkpoints import average_weights, load_average, newest_complete
from .methods.bpe_dropout import BPEDropout
from .methods.loss import SmoothedCrossEntropy
from .run import train_translation
from .run_state import RunResult
from .trainer import TranslationTrainer
from .training_arguments import TranslationTrainingArguments, paper_peak_rate

__all__ = [
    "BPEDropout",
    "DataArguments",
    "ModelArguments",
    "RunResult",
    "SmoothedCrossEntropy",
    "TranslationTrainer",
    "TranslationTrainingArguments",
    "average_weights",
    "load_average",
    "newest_complete",
    "paper_peak_rate",
    "train_translation",
]
