"""Synthetic training data: back-translation of monolingual text.

back_translate("mono.de", "synthetic.en", "synthetic.de", reverse_model, tokenizer, method="noised_beam")
"""

from .back_translation import BackTranslationReport, back_translate
from .noise import add_noise

__all__ = ["BackTranslationReport", "add_noise", "back_translate"]
