"""Synthetic training data: back-translation of monolingual text, and distillation of a teacher into a smaller student.

    back_translate("mono.de", "synthetic.en", "synthetic.de", reverse_model, tokenizer, method="noised_beam")
    distill(DistillationArguments(teacher=["outputs/big"], source_text=["train.en"]), data_args, model_args, args)

Both require the extra `train`.
"""

from .back_translation import BackTranslationOptions, BackTranslationReport, add_noise, back_translate
from .distillation import DistillationResult, StudentDataArguments, distill
from .training_set import DistillationArguments

__all__ = [
    "BackTranslationOptions",
    "BackTranslationReport",
    "DistillationArguments",
    "DistillationResult",
    "StudentDataArguments",
    "add_noise",
    "back_translate",
    "distill",
]
