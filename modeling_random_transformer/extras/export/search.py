"""The search options, the vocabulary and the positions of a model that engines need."""

import copy
from dataclasses import dataclass, replace
from typing import Any

from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from ...inference.translation import length_penalty_of
from ...inputs_random_transformer import language_id
from ...modeling_random_transformer import RandomTransformerForConditionalGeneration
from ...pipeline_random_transformer import check_target_language

logger = logging.get_logger(__name__)

# Options of the generation config that change the result of a search and that only `generate()` computes, with values
# that have no effect. `None` has none either.
UNSUPPORTED_OPTIONS: dict[str, Any] = {
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


@dataclass(frozen=True)
class SearchOptions:
    """The options of a model's search that are exported, as `generate()` applies them.

    Attributes:
        start_token: the token that starts a target.
        end_tokens: the tokens that end a target.
        first_token: the token that every target begins with, such as the tag of its language.
        suppressed_sequences: the sequences of tokens that are never completed.
        min_new_tokens: the minimum number of tokens before the end token.
        no_repeat_ngram_size: sequences of this length in tokens are not repeated; 0 for no limit.
        prefix: text before each source.
        length_penalty: that of beam search.
        patience: that of beam search with `early_stopping=True`.
    """

    start_token: int
    end_tokens: list[int]
    first_token: int | None
    suppressed_sequences: list[list[int]]
    min_new_tokens: int
    no_repeat_ngram_size: int
    prefix: str
    length_penalty: float
    patience: float

    @property
    def suppressed_tokens(self) -> list[int]:
        """The tokens that are never chosen."""
        return [word[0] for word in self.suppressed_sequences if len(word) == 1]


def read_search(model: RandomTransformerForConditionalGeneration, tokenizer: Any, engine: str) -> SearchOptions:
    """The options of the model's generation config, with the target language of the tokenizer as its default.

    Raises:
        ValueError: see `engine_search`; or the model has several target languages, and neither its generation config
            nor the tokenizer selects one.
    """
    search = engine_search(model.generation_config, model.config, engine)
    return replace(search, first_token=first_token(model, tokenizer))


def first_token(model: RandomTransformerForConditionalGeneration, tokenizer: Any) -> int | None:
    """The token that every target begins with, such as the tag of its language.

    Raises:
        ValueError: the model has several target languages, and none is selected.
    """
    forced = model.generation_config.forced_bos_token_id
    language = getattr(tokenizer, "tgt_lang", None)
    if forced is None and language is not None:
        forced = language_id(tokenizer, language)
    check_target_language(model, tokenizer, {"forced_bos_token_id": forced})
    return forced


def engine_search(options: GenerationConfig, config: Any, engine: str) -> SearchOptions:
    """The options of a generation config that engines support.

    Args:
        options: the generation config of a model, or of one call of `generate()`.
        config: the model's configuration.
        engine: its name in errors.

    Raises:
        ValueError: there is not exactly one start token, or the engine would ignore an option.
    """
    for name, neutral in UNSUPPORTED_OPTIONS.items():
        value = getattr(options, name, None)
        if value not in (None, neutral):
            raise ValueError(f"{name} must be {neutral} for {engine}, got {value}.")
    start = options.bos_token_id if options.decoder_start_token_id is None else options.decoder_start_token_id
    if not isinstance(start, int):
        raise ValueError(f"decoder_start_token_id must be one token id for {engine}, got {start}.")
    return SearchOptions(
        start_token=start,
        end_tokens=token_list(options.eos_token_id),
        first_token=options.forced_bos_token_id,
        suppressed_sequences=suppressed_sequences(options, config.vocab_size),
        min_new_tokens=min_new_tokens(options),
        no_repeat_ngram_size=options.no_repeat_ngram_size or 0,
        prefix=getattr(config, "prefix", None) or "",
        length_penalty=length_penalty_of(options),
        patience=getattr(options, "patience", None) or 1,
    )


def without_patience(options: GenerationConfig, engine: str) -> GenerationConfig:
    """A copy of a generation config for an engine whose beam search has no patience, which is logged.

    Args:
        options: the generation config of a model.
        engine: its name in the message.
    """
    options = copy.deepcopy(options)
    patience = getattr(options, "patience", None) or 1
    if patience != 1:
        logger.warning("The translations may be shorter: %s has no patience, but the model has %s.", engine, patience)
    options.__dict__.pop("patience", None)
    return options


def token_list(tokens: int | list[int] | None) -> list[int]:
    """The tokens of an option of `generate()` that may be one token or several, such as `eos_token_id`."""
    if tokens is None:
        return []
    return tokens if isinstance(tokens, list) else [tokens]


def suppressed_sequences(options: GenerationConfig, vocab_size: int) -> list[list[int]]:
    """The sequences of tokens that `generate()` never completes: `suppress_tokens` and `bad_words_ids`."""
    ends = [[end] for end in token_list(options.eos_token_id)]  # transformers allows them in spite of bad_words_ids
    words = [word for word in options.bad_words_ids or [] if word not in ends]
    words += [[token] for token in options.suppress_tokens or []]
    distinct = {tuple(word) for word in words if min(word) >= 0 and max(word) < vocab_size}
    return [list(word) for word in sorted(distinct)]


def min_new_tokens(options: GenerationConfig) -> int:
    """The minimum number of tokens before the end token in `generate()`."""
    min_target_tokens = max((options.min_length or 0) - 1, 0)  # min_length counts the start token
    return min_target_tokens if options.min_new_tokens is None else options.min_new_tokens


def vocabularies(tokenizer: PreTrainedTokenizerBase) -> tuple[dict[str, int], dict[str, int]]:
    """The source and the target vocabulary. They differ only for a `MarianTokenizer` with two files."""
    source = tokenizer.get_vocab()
    return source, tokenizer.target_encoder if getattr(tokenizer, "separate_vocabs", False) else source


def token_names(tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> list[list[str]]:
    """The source and the target vocabulary, each of `vocab_size` tokens in the order of their ids."""
    names = [{i: token for token, i in vocabulary.items()} for vocabulary in vocabularies(tokenizer)]
    return [[tokens.get(i, f"<no token {i}>") for i in range(vocab_size)] for tokens in names]


def table_positions(config: Any) -> int:
    """Entries of a table of positions: at least 1,024 sinusoids, which the model computes for any length."""
    positions = config.max_position_embeddings
    return positions if config.position_embedding == "learned" else max(positions, 1024)
