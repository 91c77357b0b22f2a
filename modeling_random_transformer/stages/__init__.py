"""Synthetic training data: back-translation of monolingual text, and distillation of a teacher into a smaller student.

Recipes combine both with trainings.

    back_translate("mono.de", "synthetic.en", "synthetic.de", reverse_model, tokenizer, method="noised_beam")
    distill(DistillationArguments(teacher=["outputs/big"], source_text=["train.en"]), data, model, args)
    run_recipe("examples/recipes/low_resource.yaml", source_file="corpus.en", target_file="corpus.sw")

All require the extra `train`.
"""

from .back_translation import BackTranslationOptions, BackTranslationReport, add_noise, back_translate
from .distillation import DistillationResult, StudentDataArguments, distill
from .recipes import run_recipe
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
    "run_recipe",
]
