"""How translations are searched for when a model and an engine are compared: the same on both sides."""

from collections.abc import Sequence
from typing import Any, Protocol

from ..translation import translate

LENGTH_PENALTY = 0.6  # paper 6.1, as in `translate`
MAX_BATCH_TOKENS = 4096


class Translate(Protocol):
    """What an engine is loaded as."""

    def __call__(self, texts: Sequence[str], num_beams: int, max_new_tokens: int) -> list[str]:
        """Translations of these texts, by greedy search (one beam) or beam search, in their order."""


def generating(model: Any, tokenizer: Any) -> Translate:
    """The search of a model with transformers' `generate()`."""

    def run(texts: Sequence[str], num_beams: int, max_new_tokens: int) -> list[str]:
        options: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": max_new_tokens, "do_sample": False}
        options["forced_eos_token_id"] = None  # Marian's: it takes the place of a token where a text meets the limit
        if num_beams > 1:  # CTranslate2 ends a search with its first `num_beams` hypotheses, and cannot do otherwise
            options |= {"length_penalty": LENGTH_PENALTY, "early_stopping": True}
        return translate(texts, model, tokenizer, max_batch_tokens=MAX_BATCH_TOKENS, progress=False, **options)

    return run
