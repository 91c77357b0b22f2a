"""BPE-dropout (Provilkov et al. 2020, https://aclanthology.org/2020.acl-main.170): random segmentations in training."""

from collections.abc import Sequence
from itertools import chain, groupby, islice, pairwise

import numpy as np
from transformers import PreTrainedTokenizerBase

from ...base.digests import tokenizer_definition
from ...data.retokenization import Seeds, TokenIds
from ...data.tokenization import ID_COLUMNS, WORD_COLUMNS

Symbols = tuple[int, ...]
NO_MERGE = 2**63  # a rank after all others
MAX_CACHED_WORDS = 2**16  # the cache takes at most about 50 MB


class BPEDropout:
    """Segments words with randomly dropped merges.

    Each word starts as its smallest symbols. At each step, each possible merge is dropped with probability `dropout`,
    and the first remaining merge in the tokenizer's order is applied. The segmentation ends when no merge remains.
    Tokens that are not the result of merges, such as special tokens, do not change.

    `tokenizers` has the same algorithm, `BPE(dropout=...)`, but its random numbers cannot be seeded.

    Args:
        tokenizer: a tokenizer with a BPE model.
        dropout: probability to drop a merge, in [0, 1).
        max_length: a text that would have more tokens, or more than the tokenizer's `model_max_length`, keeps its
            ordinary segmentation. `TranslationTrainer` sets it to the number of the model's learned positions.

    Raises:
        ValueError: the tokenizer has no BPE model, or `dropout` is invalid.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, dropout: float, max_length: int | None = None):
        if not 0 <= dropout < 1:
            raise ValueError(f"bpe_dropout must be at least 0 and below 1, got {dropout}.")
        self.tokenizer = tokenizer
        self.dropout = dropout
        self.max_length = max_length
        self.merges = bpe_merges(tokenizer)
        self._ranks = {pair: rank for rank, pair in enumerate(self.merges)}
        self._halves = {merged: pair for pair, merged in reversed(self.merges.items())}
        self._words: dict[Symbols, tuple[list[int], list[int]]] = {}

    def __call__(self, ids: Sequence[int], words: Sequence[int], random: np.random.Generator) -> list[int]:
        """Segment a text anew.

        Args:
            ids: the ordinary segmentation of the text, `[tokens]`.
            words: the index of each token's word, as `BatchEncoding.word_ids`, `[tokens]`; merges stay within a word.
            random: the source of randomness.
        """
        tokens = iter(ids)
        ordinary = []  # the tokens of each word
        for _, indices in groupby(words):
            length = len(list(indices))
            ordinary.append(tuple(islice(tokens, length)))
        split = [self._split(word) for word in ordinary]
        num_symbols = sum(len(symbols) for symbols, _ in split)
        # The number of merges that are dropped before each applied merge.
        numbers = random.geometric(1 - self.dropout, num_symbols) - 1
        dropped = iter(numbers.tolist())
        segmented = []
        for word, (symbols, ranks) in zip(ordinary, split, strict=True):
            dropped_in_word = [*islice(dropped, len(symbols))]
            if any(dropped_in_word):
                segmented += self._merge(list(symbols), list(ranks), dropped_in_word)
            else:
                segmented += word
        limit = self.tokenizer.model_max_length
        if self.max_length is not None:
            limit = min(limit, self.max_length)
        if len(segmented) > limit:
            return list(ids)
        return segmented

    def _merge(self, symbols: list[int], ranks: list[int], dropped: list[int]) -> list[int]:
        """Merge symbols in place. `ranks` has the ranks of neighbors. The leftmost of equal ranks is merged first."""
        for skipped in dropped:
            if skipped >= len(ranks):
                break
            i = ranks.index(min(ranks))
            if skipped:
                order = sorted(range(len(ranks)), key=ranks.__getitem__)
                i = order[skipped]
            if ranks[i] == NO_MERGE:
                break
            right = symbols.pop(i + 1)
            merged = self.merges[symbols[i], right]
            symbols[i] = merged
            del ranks[i]
            if i > 0:
                ranks[i - 1] = self._rank((symbols[i - 1], merged))
            if i < len(ranks):
                ranks[i] = self._rank((merged, symbols[i + 1]))
        return symbols

    def _rank(self, pair: tuple[int, int]) -> int:
        return self._ranks.get(pair, NO_MERGE)

    def _split(self, word: Symbols) -> tuple[list[int], list[int]]:
        """The smallest symbols of a word's tokens, and the ranks of the merges of neighbors."""
        if word not in self._words:
            symbols = [*chain.from_iterable(map(self._symbols, word))]
            ranks = [self._rank(pair) for pair in pairwise(symbols)]
            if len(self._words) >= MAX_CACHED_WORDS:
                self._words.clear()
            self._words[word] = symbols, ranks
        return self._words[word]

    def _symbols(self, token: int) -> list[int]:
        if token not in self._halves:
            return [token]
        left, right = self._halves[token]
        return self._symbols(left) + self._symbols(right)

    def retokenize(self, rows: dict[str, list], seeds: Seeds) -> TokenIds:
        """New segmentations of pairs, as columns of token ids.

        Args:
            rows: columns `input_ids` and `labels` with the ordinary segmentation, and the columns of their words.
            seeds: determines the segmentations of each pair.
        """
        # A generator segments the source of its pair, then the target.
        generators = [*map(np.random.default_rng, seeds)]
        columns = {}
        for ids, words in zip(ID_COLUMNS, WORD_COLUMNS, strict=True):
            columns[ids] = [*map(self, rows[ids], rows[words], generators)]
        return columns


def bpe_merges(tokenizer: PreTrainedTokenizerBase) -> dict[tuple[int, int], int]:
    """The result of each merge of two token ids, in the order of their ranks.

    Raises:
        ValueError: the tokenizer has no BPE model, or two of them.
    """
    if tokenizer.init_kwargs.get("target_merges"):
        raise ValueError("bpe_dropout must be 0 for a tokenizer with different merges for sources and targets.")
    model = tokenizer_definition(tokenizer).get("model", {"type": type(tokenizer).__name__})
    if model["type"] != "BPE":
        raise ValueError(f"bpe_dropout must be 0 for a tokenizer without BPE merges, got a {model['type']} tokenizer.")
    ids = model["vocab"]
    prefix = model.get("continuing_subword_prefix") or ""
    merges = {}
    for left, right in model["merges"]:
        merged = left + right.removeprefix(prefix)
        pair = ids[left], ids[right]
        merges[pair] = ids[merged]
    return merges
