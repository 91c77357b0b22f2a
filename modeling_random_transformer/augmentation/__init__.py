"""Synthetic training data: back-translation of monolingual text, and distillation of a teacher into a smaller student.

    back_translate("mono.de", "synthetic.en", "synthetic.de", reverse_model, tokenizer, method="noised_beam")
    distill(DistillationArguments(teacher=["outputs/big"], source_text=["train.en"]), data, model, args)

`distill` requires the extra `train`.
"""

from typing import Any

from .back_translation import BackTranslationReport, add_noise, back_translate

__all__ = [
    "BackTranslationReport",
    "DistillationArguments",
    "DistillationResult",
    "StudentDataArguments",
    "add_noise",
    "back_translate",
    "distill",
]


def __getattr__(name: str) -> Any:
    """Import the names of `distillation` on first use, because back-translation does not require the extra `train`."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from . import distillation

    return getattr(distillation, name)
