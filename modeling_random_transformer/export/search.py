"""The search that is used for comparing models and engines, and the options of it that are exported."""

from collections.abc import Sequence
from typing import Any, Protocol

from ..modeling_random_transformer import RandomTransformerForConditionalGeneration
from ..pipeline_random_transformer import Seq2SeqPipeline, language_id

LENGTH_PENALTY = 0.6  # paper 6.1
MAX_BATCH_TOKENS = 4096
# Options of the generation config that change the result of a search and that only `generate()` computes, with values
# that have no effect. `None` has none either.
UNSUPPORTED: dict[str, Any] = {
    "begin_suppress_tokens": [],
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1,
    "exponential_decay_length_penalty": None,
    "guidance_scale": 1,
    "max_time": None,
    "repetition_penalty": 1,  # CTranslate2 applies it to logits, generate() in beam search to log-probabilities
    "sequence_bias": None,
    "stop_strings": None,
    "token_healing": False,
    "watermarking_config": None,
}


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
        options["num_return_sequences"] = 1
        if num_beams > 1:  # CTranslate2 always stops after the first `num_beams` finished hypotheses
            options |= {"length_penalty": LENGTH_PENALTY, "early_stopping": True}
            if forbids_tokens(model):  # CTranslate2 distributes their probability over the other tokens
                options["renormalize_logits"] = True
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


def first_token(model: RandomTransformerForConditionalGeneration, tokenizer: Any) -> int | None:
    """The token that every target begins with, such as the tag of its language.

    Raises:
        ValueError: the model has several target languages, and neither its generation config nor the tokenizer selects
            one.
    """
    forced, language = model.generation_config.forced_bos_token_id, getattr(tokenizer, "tgt_lang", None)
    if forced is None and language is not None:
        forced = language_id(tokenizer, language)
    Seq2SeqPipeline(model, tokenizer, device=model.device).check_target_language({"forced_bos_token_id": forced})
    return forced


def suppressed_sequences(model: Any) -> list[list[int]]:
    """The sequences of tokens that `generate()` never completes: `suppress_tokens` and `bad_words_ids`."""
    options, size = model.generation_config, model.config.vocab_size
    ends = [[end] for end in end_tokens(model)]  # transformers allows them in spite of bad_words_ids
    words = [word for word in options.bad_words_ids or [] if word not in ends]
    words += [[token] for token in options.suppress_tokens or []]
    return sorted({tuple(word): word for word in words if max(word) < size}.values())


def min_new_tokens(model: Any) -> int:
    """The minimum number of tokens before the end token in `generate()`."""
    options = model.generation_config
    of_target = max((options.min_length or 0) - 1, 0)  # min_length counts the start token
    return of_target if options.min_new_tokens is None else options.min_new_tokens


def forbids_tokens(model: Any) -> bool:
    """Whether tokens can be forbidden in some steps of `generate()`."""
    ngrams = model.generation_config.no_repeat_ngram_size
    return bool(suppressed_sequences(model) or min_new_tokens(model) or ngrams)


def check_options(model: RandomTransformerForConditionalGeneration, engine: str) -> None:
    """Raise a `ValueError` that names an option of the generation config which the engine would ignore."""
    for name, neutral in UNSUPPORTED.items():
        value = getattr(model.generation_config, name, None)
        if value not in (None, neutral):
            raise ValueError(f"{name} must be {neutral} for {engine}, got {value}.")
