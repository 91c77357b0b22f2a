"""The search that is used for comparing models and engines."""

from collections.abc import Sequence
from typing import Any, Protocol

from ..pipeline_random_transformer import Seq2SeqPipeline

LENGTH_PENALTY = 0.6  # paper 6.1
MAX_BATCH_TOKENS = 4096


class Translate(Protocol):
    """A function that translates texts."""

    def __call__(self, texts: Sequence[str], num_beams: int, max_new_tokens: int) -> list[str]:
        """Translate texts by greedy search (one beam) or beam search, and return the translations in their order."""


def translate_fn(model: Any, tokenizer: Any) -> Translate:
    """Wrap a model's `generate()` as a function that translates texts."""
    pipe = Seq2SeqPipeline(model, tokenizer, device=model.device, max_batch_tokens=MAX_BATCH_TOKENS)

    def run(texts: Sequence[str], num_beams: int, max_new_tokens: int) -> list[str]:
        options: dict[str, Any] = {"num_beams": num_beams, "max_new_tokens": max_new_tokens, "do_sample": False}
        options["forced_eos_token_id"] = None  # set by Marian; it replaces the last token at the length limit
        if num_beams > 1:  # CTranslate2 always stops after the first `num_beams` finished hypotheses
            options |= {"length_penalty": LENGTH_PENALTY, "early_stopping": True}
        indices = [i for i, text in enumerate(texts) if text.strip()]  # the pipeline rejects blank texts
        translations = [""] * len(texts)
        for i, answer in zip(indices, pipe([texts[i] for i in indices], **options), strict=True):
            translations[i] = answer["generated_text"]
        return translations

    return run
