"""BPE-dropout (Provilkov et al. 2020, https://aclanthology.org/2020.acl-main.170): random segmentations in training."""

import json
from collections.abc import Sequence
from itertools import groupby, islice, pairwise
from typing import Any

import datasets
import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from .batches import TokenBudgetSampler
from .tokenization import WORDS

Symbols = tuple[int, ...]
MAX_CACHED_WORDS, MAX_CACHED_SYMBOLS = 2**17, 24  # at most about 100 MB in each worker


class BPEDropout:
    """Segments words with randomly dropped merges.

    A word starts as its smallest symbols. At each step, each possible merge is dropped with probability `dropout`, and
    the first of the others in the tokenizer's order is applied. The segmentation ends when no merge remains. Tokens
    that are not made by merges, such as special tokens, stay as they are.

    `tokenizers` has the same algorithm, `BPE(dropout=...)`, but its random numbers cannot be seeded.

    Args:
        tokenizer: a tokenizer with a BPE model. A text that would exceed its `model_max_length` keeps its ordinary
            segmentation.
        dropout: probability to drop a merge, in [0, 1).

    Raises:
        ValueError: the tokenizer has no BPE model, or `dropout` is invalid.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, dropout: float):
        if not 0 <= dropout < 1:
            raise ValueError(f"bpe_dropout must be at least 0 and below 1, got {dropout}.")
        self.tokenizer = tokenizer
        self.dropout = dropout
        self.merges = _merges(tokenizer)
        self._halves = {merged: pair for pair, (_, merged) in reversed(self.merges.items())}
        self._split_words: dict[Symbols, Symbols] = {}
        self._possible_merges: dict[Symbols, list[tuple[int, int]]] = {}

    def __call__(self, ids: Sequence[int], words: Sequence[int], random: np.random.Generator) -> list[int]:
        """Segment a text anew.

        Args:
            ids: the ordinary segmentation of the text, `[tokens]`.
            words: the index of each token's word, as `BatchEncoding.word_ids`, `[tokens]`; merges stay within a word.
            random: the source of randomness.
        """
        tokens = iter(ids)
        ordinary = [tuple(islice(tokens, len(list(word)))) for _, word in groupby(words)]
        split = [self._split(word) for word in ordinary]
        # For each step, the number of dropped merges before the one that is applied.
        dropped = (random.geometric(1 - self.dropout, sum(map(len, split))) - 1).tolist()
        segmented: list[int] = []
        start = 0
        for word, symbols in zip(ordinary, split, strict=True):
            numbers = dropped[start : start + len(symbols)]
            start += len(symbols)
            # Without a dropped merge, the result is the ordinary segmentation.
            segmented += self._merge(symbols, numbers) if any(numbers) else word
        return segmented if len(segmented) <= self.tokenizer.model_max_length else list(ids)

    def _merge(self, symbols: Symbols, dropped: list[int]) -> Symbols:
        for number in dropped:
            possible = self._possible(symbols)
            if number >= len(possible):
                break
            position, merged = possible[number]
            symbols = (*symbols[:position], merged, *symbols[position + 2 :])
        return symbols

    def _possible(self, symbols: Symbols) -> list[tuple[int, int]]:
        """The possible merges in the tokenizer's order: the position of the first symbol, and the merged one."""
        possible = self._possible_merges.get(symbols)
        if possible is None:
            found = [
                (rank, position, merged)
                for position, pair in enumerate(pairwise(symbols))
                for rank, merged in [self.merges.get(pair, (-1, -1))]
                if rank >= 0
            ]
            possible = [(position, merged) for _, position, merged in sorted(found)]
            _remember(self._possible_merges, symbols, possible)
        return possible

    def _split(self, word: Symbols) -> Symbols:
        """The smallest symbols of a word's tokens."""
        symbols = self._split_words.get(word)
        if symbols is None:
            symbols = tuple(symbol for token in word for symbol in self._symbols(token))
            _remember(self._split_words, word, symbols)
        return symbols

    def _symbols(self, token: int) -> list[int]:
        if token not in self._halves:
            return [token]
        return [symbol for half in self._halves[token] for symbol in self._symbols(half)]


class BPEDropoutPairs(Dataset):
    """Training pairs with new segmentations in every epoch.

    A segmentation depends on the seed, the epoch and the index of the pair only. Thus neither resuming nor the number
    of workers or processes changes it. `set_epoch` segments all pairs, since their lengths determine the batches.

    Args:
        tokens: the result of `tokenize_pairs` with `words=True`.
        bpe_dropout: segments the texts.
        seed: determines the segmentations.

    Raises:
        ValueError: `tokens` has no words.
    """

    def __init__(self, tokens: datasets.Dataset, bpe_dropout: BPEDropout, seed: int):
        if not set(WORDS) <= set(tokens.column_names):
            raise ValueError(
                f"train_dataset must have the columns {' and '.join(WORDS)} for bpe_dropout (tokenize_pairs with "
                f"words=True), got {', '.join(tokens.column_names)}."
            )
        self.tokens = tokens.select_columns(["input_ids", "labels", *WORDS])
        self.bpe_dropout = bpe_dropout
        self.seed = seed
        self.epoch: int | None = None
        self.rows: list[tuple[np.ndarray, np.ndarray]] = []  # source and target of each pair

    def set_epoch(self, epoch: int) -> None:
        """Segment all pairs for this epoch."""
        if epoch == self.epoch:
            return
        self.epoch, self.rows = epoch, []
        for batch in self.tokens.iter(batch_size=1000):
            first = len(self.rows)
            seeds = [(self.seed, epoch, first + index) for index in range(len(batch["labels"]))]
            columns = segment_columns(batch, self.bpe_dropout, seeds)
            # Arrays need a tenth of the memory of lists.
            sides = ([np.array(ids, np.int32) for ids in columns[name]] for name in ("input_ids", "labels"))
            self.rows += zip(*sides, strict=True)

    def lengths(self) -> np.ndarray:
        """The number of tokens of each source and target in this epoch, `[pairs, 2]`."""
        return np.array([(len(source), len(target)) for source, target in self.rows])

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        source, target = (ids.tolist() for ids in self.rows[index])
        return {"input_ids": source, "attention_mask": [1] * len(source), "labels": target}


class BPEDropoutSampler(TokenBudgetSampler):
    """A `TokenBudgetSampler` for `BPEDropoutPairs`.

    The token budget determines how many pairs each batch has and counts tokens without dropout. Every epoch has these
    numbers of pairs, sorted by the lengths of its segmentations.

    Args:
        pairs: the pairs.
        *args: the arguments of `TokenBudgetSampler`; the lengths are those without dropout.
        **options: the same.
    """

    def __init__(self, pairs: BPEDropoutPairs, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.pairs = pairs

    def set_epoch(self, epoch: int) -> None:
        """Segment the pairs for this epoch, which also determines the order of the next iteration."""
        super().set_epoch(epoch)
        self.pairs.set_epoch(epoch)
        self.sort_by(*self.pairs.lengths().T)


def segment_columns(
    rows: dict[str, list], bpe_dropout: BPEDropout, seeds: Sequence[tuple[int, ...]]
) -> dict[str, list[list[int]]]:
    """New segmentations of pairs, as columns of token ids.

    Args:
        rows: columns `input_ids` and `labels` with the ordinary segmentation, and the columns of their words.
        bpe_dropout: segments the texts.
        seeds: determines the segmentations of each pair.
    """
    randoms = [np.random.default_rng(seed) for seed in seeds]
    input_ids, labels = (
        [bpe_dropout(*text) for text in zip(rows[ids], rows[words], randoms, strict=True)]
        for ids, words in zip(("input_ids", "labels"), WORDS, strict=True)
    )
    return {"input_ids": input_ids, "attention_mask": [[1] * len(ids) for ids in input_ids], "labels": labels}


def _merges(tokenizer: PreTrainedTokenizerBase) -> dict[tuple[int, int], tuple[int, int]]:
    """The rank and the result of each merge of two token ids.

    Raises:
        ValueError: the tokenizer has no BPE model.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    model: dict[str, Any] = {"type": type(tokenizer).__name__}
    if backend is not None:
        model = json.loads(backend.to_str())["model"]
    if model["type"] != "BPE":
        raise ValueError(f"bpe_dropout must be 0 for a tokenizer without BPE merges, got a {model['type']} tokenizer.")
    ids, prefix = model["vocab"], model.get("continuing_subword_prefix") or ""
    return {
        (ids[left], ids[right]): (rank, ids[left + right.removeprefix(prefix)])
        for rank, (left, right) in enumerate(model["merges"])
    }


def _remember(cache: dict[Symbols, Any], key: Symbols, value: Any) -> None:
    """Store a value for a short word; long ones are rare."""
    if len(key) <= MAX_CACHED_SYMBOLS:
        if len(cache) >= MAX_CACHED_WORDS:
            cache.clear()
        cache[key] = value
