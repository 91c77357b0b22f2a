"""Converts texts to inputs of a model: checks, languages, limits on lengths, and batches.

All code that tokenizes texts of users calls this module. Like the pipeline, it is copied into saved folders.
"""

import math
import reprlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import BatchEncoding, PretrainedConfig

from .configuration_random_transformer import is_int
from .tokenization_random_transformer import is_blank, unicode_error

CHUNK_SIZE = 1000  # texts that are sorted by length together
MAX_HYPOTHESES = 1000  # per text; memory and time of a search are proportional to it
# Exponents of a length. Beyond them, the scores of long hypotheses are below those of excluded beams, or all zero.
LOWEST_PENALTY, HIGHEST_PENALTY = -2, 10
# The paper limits an output to the length of its input plus 50 (section 6.1). All texts of a batch share one limit,
# because beam search depends on it. Rounding lengths up to a multiple of 16 allows larger batches.
LONGER_THAN_SOURCE = 50
LENGTH_STEP = 16
# Truncation, padding and languages are mutable state of other models' tokenizers, so their calls are serialized.
TOKENIZER_LOCK = threading.Lock()

T = TypeVar("T")
Ids = list[int]  # token ids of a text

# Checks of arguments and texts


class TextError(ValueError):
    """A text that cannot be used. A caller replaces the index in the message, for example by the line of a file.

    Args:
        index: the index of the text, from 0, among the texts of the call.
        reason: what is wrong, as a sentence.
    """

    def __init__(self, index: int, reason: str):
        super().__init__(index, reason)
        self.index, self.reason = index, reason

    def __str__(self) -> str:
        return f"index {self.index}: {self.reason}"


@contextmanager
def renumber_errors(numbers: Sequence[int]) -> Iterator[None]:
    """Replace the index of a `TextError` by the number in `numbers` at this index."""
    try:
        yield
    except TextError as error:
        raise TextError(numbers[error.index], error.reason) from None


@contextmanager
def name_lines_in_errors(name: str, first: int = 0) -> Iterator[None]:
    """Convert a `TextError` to a `ValueError` that names the file and the line.

    Args:
        name: the file.
        first: index of the line of the first text, from 0.
    """
    try:
        yield
    except TextError as error:
        raise ValueError(f"{name}, line {first + error.index + 1}: {error.reason}") from error


def check_text(text: Any, index: int) -> None:
    """Raise a `TextError` unless a text is a string of Unicode characters, some of them visible."""
    check_string(text, index)
    if is_blank(text):
        raise TextError(index, f"texts must not be blank, got {reprlib.repr(text)}.")


def check_string(text: Any, index: int) -> None:
    """Raise a `TextError` unless a text is a string of Unicode characters. It may be blank."""
    if not isinstance(text, str):
        raise TextError(index, f"texts must be strings, got {reprlib.repr(text)}.")
    if error := unicode_error(text):
        raise TextError(index, f"texts must be Unicode, got {reprlib.repr(text)}: {error}.") from error


def check_type(name: str, value: Any, expected: Any, description: str) -> None:
    """Raise a `ValueError` unless an argument is `None` or of a type, which `description` names."""
    if value is not None and not isinstance(value, expected):
        raise ValueError(f"{name} must be {description}, got {value!r}.")


def check_positive(*, or_none: bool = False, limit: float = math.inf, **counts: Any) -> None:
    """Check that each argument is an integer from 1 to a limit."""
    for name, value in counts.items():
        if or_none and value is None:
            continue
        if not is_int(value) or value < 1:
            raise ValueError(f"{name} must be {'None or ' if or_none else ''}a positive integer, got {value!r}.")
        if value > limit:
            raise ValueError(f"{name} must be at most {limit}, got {value}.")


def check_choice(choices: Iterable[Any], **arguments: Any) -> None:
    """Check that each argument is one of the allowed values."""
    choices = list(choices)
    for name, value in arguments.items():
        if not choices:
            raise ValueError(f"{name} must be unset, got {value!r}.")
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(str, choices))}, got {value!r}.")


def drop_none(**params: Any) -> dict[str, Any]:
    """The parameters that are not `None`."""
    return {name: value for name, value in params.items() if value is not None}


# Languages


@dataclass(frozen=True)
class Languages:
    """The languages of texts and of their translations, which readers of texts create and pass on with the texts.

    Attributes:
        source: code of the source language; `None` for the tokenizer's language, or for a tokenizer without tags.
        target: code of the target language, or `None` likewise.
    """

    source: str | None = None
    target: str | None = None

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of the languages that are not `None`."""
        return tuple(self.arguments.values())

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments `src_lang` and `tgt_lang` of `encode_texts` and `translate`, without those that are `None`."""
        return drop_none(src_lang=self.source, tgt_lang=self.target)

    def arguments_for(self, tokenizer: Any) -> dict[str, Any]:
        """`arguments` for a tokenizer with language tags; empty for other tokenizers."""
        return self.arguments if tokenizer_languages(tokenizer) else {}

    @classmethod
    def of(cls, tokenizer: Any, src_lang: str | None = None, tgt_lang: str | None = None) -> "Languages":
        """The languages of a call: the given codes, otherwise the codes of the tokenizer.

        Raises:
            ValueError: a code is unknown, missing, or given for a tokenizer without language tags.
        """
        languages = tokenizer_languages(tokenizer)
        if not languages:
            check_languages(tokenizer, src_lang, tgt_lang)
            return cls()
        src_lang = src_lang or tokenizer.src_lang
        tgt_lang = tgt_lang or tokenizer.tgt_lang
        check_choice(languages, src_lang=src_lang, tgt_lang=tgt_lang)
        return cls(src_lang, tgt_lang)


def check_languages(tokenizer: Any, src_lang: str | None, tgt_lang: str | None) -> None:
    """Raise a `ValueError` for a code that is unknown, or that is given for a tokenizer without language tags."""
    languages = tokenizer_languages(tokenizer)
    for name, code in drop_none(src_lang=src_lang, tgt_lang=tgt_lang).items():
        if not languages:
            raise ValueError(f"{name} must be None for a model without language tags, got {code!r}.")
        check_choice(languages, **{name: code})


def tokenizer_languages(tokenizer: Any) -> list[str]:
    """The language codes of a tokenizer with language tags; empty for others."""
    if not hasattr(tokenizer, "src_lang"):
        return []
    # Attributes of this project's, mBART's and M2M-100's tokenizers.
    for name in ("languages", "lang_code_to_id", "lang_code_to_token"):
        if hasattr(tokenizer, name):
            return list(getattr(tokenizer, name))
    return list(tokenizer.extra_special_tokens)  # NLLB's codes


def language_id(tokenizer: Any, code: str) -> int:
    """The id of a language's tag."""
    if hasattr(tokenizer, "get_lang_id"):
        return tokenizer.get_lang_id(code)
    return tokenizer.convert_tokens_to_ids(code)


def encode_texts(
    tokenizer: Any, *args: Any, src_lang: str | None = None, tgt_lang: str | None = None, **options: Any
) -> BatchEncoding:
    """`tokenizer(...)` for texts of users, in which no character sequence is a control token.

    `RandomTransformerTokenizer.encode_texts` defines the control tokens. Tokenizers of other models recognize their
    special tokens, such as `>>fra<<` and `<extra_id_0>`, because users write them into texts.

    Args:
        tokenizer: a tokenizer.
        *args: the arguments of `tokenizer(...)`.
        src_lang: language code of the sources; the tokenizer's `src_lang` when `None`.
        tgt_lang: language code of the targets; the tokenizer's `tgt_lang` when `None`.
        **options: the arguments of `tokenizer(...)`.
    """
    codes = drop_none(src_lang=src_lang, tgt_lang=tgt_lang)
    if hasattr(tokenizer, "encode_texts"):
        return tokenizer.encode_texts(*args, **codes, **options)
    with TOKENIZER_LOCK:
        saved = {name: getattr(tokenizer, name, None) for name in codes}
        try:
            for name, code in codes.items():
                setattr(tokenizer, name, code)
            return tokenizer(*args, **options)
        finally:
            for name, code in saved.items():
                setattr(tokenizer, name, code)


def source_text(text: str, tokenizer: Any, config: Any = None, prefix: str | None = None) -> str:
    """A source as the model reads it: without extra spaces, after `prefix` or, if it is `None`, the configuration's.

    `RandomTransformerTokenizer.without_extra_spaces` defines the extra spaces. Other tokenizers remove them or not.
    """
    if prefix is None:
        prefix = getattr(config, "prefix", None) or ""
    return prefix + getattr(tokenizer, "without_extra_spaces", str)(text)


def decode_ids(tokenizer: Any, ids: Tensor | list[Ids], clean_up_spaces: bool | None = None) -> list[str]:
    """The text of each row of token ids, `[rows, length]`, without special tokens."""
    with TOKENIZER_LOCK:
        return tokenizer.batch_decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=clean_up_spaces)


# Limits on lengths


def longest_target(
    source_len: int,
    config: PretrainedConfig,
    max_new_tokens: int | None = None,
    prefix_len: int = 0,
) -> int:
    """The limit on the tokens that `generate()` adds to the start token, in translation and in evaluation.

    Args:
        source_len: number of tokens of the source, or of the longest source of a batch, without padding.
        config: the model's configuration; its learned positions limit the target too.
        max_new_tokens: an explicit limit. The default is `source_len` + 50 (paper 6.1) + `prefix_len`, with both
            lengths rounded up to a multiple of 16. All sources of a batch have the same limit.
        prefix_len: tokens of a forced prefix.
    """
    computed = LENGTH_STEP * sum(math.ceil(length / LENGTH_STEP) for length in (source_len, prefix_len))
    limit = max_new_tokens or (computed + LONGER_THAN_SOURCE)
    positions = max_target_positions(config)
    return limit if positions is None else min(limit, positions)


def max_target_positions(config: PretrainedConfig) -> int | None:
    """The number of positions of a decoder; `None` if it is unlimited."""
    if getattr(config, "position_embedding", "learned") != "learned":  # sinusoids have no limit
        return None
    return getattr(config, "max_position_embeddings", None)


def max_source_positions(model: Any) -> int | None:
    """The number of positions of an encoder; `None` if it is unlimited. For an ensemble, the lowest number.

    Only position tables are limited. Rotary, relative and computed sinusoidal positions are not.
    """
    if hasattr(model, "members"):
        return min(filter(None, map(max_source_positions, model.members)), default=None)
    encoder = model.get_encoder()
    named = (module for name, module in encoder.named_modules() if "position" in name)
    # FSMT's tables, which have `make_weight`, grow on demand.
    tables = [table for table in named if isinstance(table, nn.Embedding) and not hasattr(table, "make_weight")]
    config = getattr(encoder, "config", model.config)
    encoder_count = getattr(config, "max_encoder_position_embeddings", None)  # LED: the decoder has a different number
    count = encoder_count or getattr(config, "max_position_embeddings", None)
    if not tables or count is None:
        return None
    table = tables[0]
    counted_from_padding = table.padding_idx is not None and table.num_embeddings == count  # RoBERTa
    return count - table.padding_idx - 1 if counted_from_padding else count


def source_limit(tokenizer: Any, positions: int | None, max_source_tokens: int | None) -> tuple[int, str]:
    """The limit on the tokens of a source, and the name of the setting that defines it.

    Args:
        tokenizer: its `model_max_length` is the default limit; 10³⁰ if the tokenizer has none.
        positions: the number of positions of the encoder; `None` if it is unlimited.
        max_source_tokens: an explicit limit, which overrides `model_max_length`.
    """
    limits = [(tokenizer.model_max_length, "tokenizer.model_max_length, which max_source_tokens overrides")]
    if max_source_tokens is not None:
        limits = [(max_source_tokens, "max_source_tokens")]
    if positions is not None:
        limits.append((positions, "the model's positions"))
    return min(limits)


# Chunks and batches


def pad_ids(rows: Sequence[Sequence[int]], value: int) -> Tensor:
    """Rows as a tensor, `[rows, longest]`, padded with `value` on the right."""
    longest = max(map(len, rows))
    return torch.tensor([[*row, *[value] * (longest - len(row))] for row in rows], dtype=torch.long)


def chunks(items: Iterable[T], size: int) -> Iterator[list[T]]:
    """Lists of `size` consecutive items, read lazily. The last list may be shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def process_chunks(items: Iterable[T], size: int, process: Callable[[list[T], int], Iterable[Any]]) -> Iterator[Any]:
    """The results of a function for chunks of `size` items, computed lazily and in the order of the items.

    The function is called with a chunk and the index of its first item. The index of a `TextError` that it raises is
    replaced by the index among all items.
    """
    first = 0
    for chunk in chunks(items, size):
        with renumber_errors(range(first, first + len(chunk))):
            results = process(chunk, first)
        yield from results
        first += len(chunk)


def batches_by_tokens(
    lengths: Sequence[tuple[int, ...]],
    max_tokens: float,
    groups: Sequence[Any] | None = None,
    max_rows: float = math.inf,
) -> list[list[int]]:
    """Indices of texts or pairs in batches of at most `max_tokens`, the longest first.

    Args:
        lengths: number of tokens of each side of each text or pair. The first side decides the order.
        max_tokens: limit on rows × (sum of the maximum length of each side). A longer row forms a separate batch.
        groups: group of each row. All rows of a batch have the same group. The largest group is first.
        max_rows: limit on the rows of a batch.
    """
    groups = [0] * len(lengths) if groups is None else groups
    batches: list[list[int]] = []
    longest: tuple[int, ...] = ()
    for i in sorted(range(len(lengths)), key=lambda i: (groups[i], lengths[i]), reverse=True):
        if batches and groups[i] == groups[batches[-1][0]]:
            padded = tuple(map(max, longest, lengths[i]))
            rows = len(batches[-1]) + 1
            if rows <= max_rows and rows * sum(padded) <= max_tokens:
                batches[-1].append(i)
                longest = padded
                continue
        batches.append([i])
        longest = lengths[i]
    return batches
