"""Maps tokens to words, and computes the probabilities of the words of translations."""

import math
import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...data.sources import Pair
from ...inference.scoring import PairModel, PairScore, Scorer
from ...inputs_random_transformer import Ids, encode_texts

NON_SPACES = re.compile(r"\S+")

Span = tuple[int, int]  # the indices of the first character and after the last one
SpansOf = Callable[[str], Sequence[Span]]  # the spans of the units of a text
TokenWords = Sequence[int | None]  # the index of the word of each token; `None` for special tokens


def word_spans(text: str) -> list[Span]:
    """The spans of the words of a text, which are separated by white space."""
    return [word.span() for word in NON_SPACES.finditer(text)]


def words_by_offsets(words: Iterable[Span], offsets: Sequence[Span]) -> TokenWords:
    """The word of each token, from the characters that both cover; a leading space does not count."""
    word_of: dict[int, int] = {}
    for index, (first, end) in enumerate(words):
        word_of |= dict.fromkeys(range(first, end), index)
    return [word_of.get(end - 1) if end > start else None for start, end in offsets]


def words_by_marks(tokens: Sequence[str], special: set[str]) -> TokenWords:
    """The word of each token of SentencePiece, where `▁` begins a word."""
    words: list[int | None] = []
    current = -1
    for token in tokens:
        current += token.startswith("▁") and token not in special
        words.append(None if token in special else max(current, 0))
    return words


def words_of_tokens(
    pair_model: PairModel,
    side: str,
    texts: Sequence[str],
    tokens: Sequence[Ids],
    spans_of: SpansOf = word_spans,
) -> list[TokenWords]:
    """The index of the word of each token; `None` for special tokens.

    Args:
        pair_model: has the tokenizer and the languages.
        side: the name of the texts in a call of the tokenizer, `"text"` or `"text_target"`.
        texts: the texts.
        tokens: their tokens.
        spans_of: the spans of the units of a text, whose indices are given instead of those of words. If the tokenizer
            has no offsets, it is the first unit of the token's word.
    """
    tokenizer = pair_model.tokenizer
    rows = []
    if not tokenizer.is_fast:
        special = set(tokenizer.all_special_tokens)
        for text, ids in zip(texts, tokens, strict=True):
            words = words_by_marks(tokenizer.convert_ids_to_tokens(ids), special)
            rows.append(first_units(words, text, spans_of))
        return rows
    inputs: dict[str, Any] = {side: list(texts), **pair_model.languages.arguments}
    encoded = encode_texts(tokenizer, **inputs, return_offsets_mapping=True, verbose=False)
    for text, offsets, ids in zip(texts, encoded["offset_mapping"], tokens, strict=True):
        rows.append(words_by_offsets(spans_of(text), offsets[: len(ids)]))
    return rows


def first_units(words: TokenWords, text: str, spans_of: SpansOf) -> TokenWords:
    """The index of the first unit of each word."""
    starts = [start for start, _ in spans_of(text)]
    units = [bisect_left(starts, start) for start, _ in word_spans(text)]
    unit_of = dict(enumerate(units))
    return [None if word is None else unit_of.get(word) for word in words]


@dataclass(frozen=True, slots=True)
class WordScore(PairScore):
    """A `PairScore` with the words of the target.

    Attributes:
        words: each word and the product of its tokens' probabilities.
    """

    words: list[tuple[str, float]] = field(default_factory=list)


class WordScorer(Scorer):
    """A `Scorer` of tokens and words."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, token_scores=True, **options)

    def process(self, pairs: Sequence[Pair], sources: Sequence[Ids], targets: Sequence[Ids]) -> list[Any]:
        """The score of each pair of a batch."""
        scores = super().process(pairs, sources, targets)
        texts = [target for _, target in pairs]
        words = words_of_tokens(self, "text_target", texts, targets)
        return list(map(with_words, scores, texts, words))


def with_words(score: PairScore, text: str, words: TokenWords) -> WordScore:
    """A score of tokens with the probabilities of the words.

    Args:
        score: the score, with those of the tokens.
        text: the target.
        words: the index of the word of each token, `None` for special ones.
    """
    values = score.token_log_probabilities or []
    first = len(words) - len(values)  # a forced first token has no score
    sums: dict[int | None, float] = defaultdict(float)
    for word, value in zip(words[first:], values, strict=True):
        sums[word] += value
    probabilities = []
    for word, (start, end) in enumerate(word_spans(text)):
        probabilities.append((text[start:end], math.exp(sums[word])))
    return WordScore(
        score.log_probability,
        score.tokens,
        score.source_tokens,
        score.token_log_probabilities,
        probabilities,
    )
