"""The search that is used for comparing models and engines, and the options of it that are exported."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
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


def start_token(model: RandomTransformerForConditionalGeneration, engine: str) -> int:
    """The token that starts a target in `generate()`.

    Raises:
        ValueError: there is not exactly one.
    """
    options = model.generation_config
    start = options.bos_token_id if options.decoder_start_token_id is None else options.decoder_start_token_id
    if not isinstance(start, int):
        raise ValueError(f"decoder_start_token_id must be one token id for {engine}, got {start}.")
    return start


def end_tokens(model: RandomTransformerForConditionalGeneration) -> list[int]:
    """The tokens that end a target in `generate()`."""
    end = model.generation_config.eos_token_id
    return end if isinstance(end, list) else [] if end is None else [end]


def suppressed_tokens(model: RandomTransformerForConditionalGeneration) -> list[int]:
    """The tokens that `generate()` never chooses, in ascending order: `suppress_tokens`, single `bad_words_ids`."""
    options, ends = model.generation_config, end_tokens(model)
    words = [word for word in options.bad_words_ids or [] if len(word) == 1 and word[0] not in ends]
    tokens = {*(options.suppress_tokens or []), *chain.from_iterable(words)}
    return sorted(tokens.intersection(range(model.config.vocab_size)))
