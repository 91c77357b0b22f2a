"""Ensembles: several models with one vocabulary decode together.

model, tokenizer = load_models(["runs/a", "runs/b"])
model = EnsembleForSeq2SeqLM([first, second])
"""

from .ensemble_model import EnsembleForSeq2SeqLM

__all__ = ["EnsembleForSeq2SeqLM"]
