"""BPE-dropout (Provilkov et al. 2020, https://aclanthology.org/2020.acl-main.170): random segmentations in training."""

import json
from collections.abc import Sequence
from itertools import chain, groupby, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ...data.sources import SIDES
from ...data.tokenization import IDS, WORDS

if TYPE_CHECKING:
    import datasets  # slow to import

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
            dropped_in_word = list(islice(dropped, len(symbols)))
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
            symbols = list(chain.from_iterable(map(self._symbols, word)))
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

    def retokenize(self, rows: dict[str, list], seeds: Sequence[tuple[int, ...]]) -> dict[str, list[list[int]]]:
        """New segmentations of pairs, as columns of token ids.

        Args:
            rows: columns `input_ids` and `labels` with the ordinary segmentation, and the columns of their words.
            seeds: determines the segmentations of each pair.
        """
        # A generator segments the source of its pair, then the target.
        generators = list(map(np.random.default_rng, seeds))
        columns = {}
        for ids, words in zip(IDS, WORDS, strict=True):
            columns[ids] = list(map(self, rows[ids], rows[words], generators))
        return columns


class RetokenizedPairs(Dataset):
    """Training pairs with new tokens in every epoch, by BPE-dropout or augmentation.

    The tokens depend on the seed, the epoch and the index of the pair only, so neither resuming nor the number of
    workers or processes changes them. `TokenBudgetSampler` calls `set_epoch`, which tokenizes all pairs, because their
    lengths determine the order of the batches.

    Args:
        tokens: the result of `tokenize_pairs` with `words=True`.
        retokenizer: `BPEDropout` or `Augmentation`, which computes the tokens.
        seed: determines the tokens.

    Raises:
        ValueError: `tokens` has no texts and words.
    """

    def __init__(self, tokens: "datasets.Dataset", retokenizer: Any, seed: int):
        columns = getattr(tokens, "column_names", None) or []
        required = [*IDS, *WORDS, *SIDES]
        if not {*required} <= {*columns}:
            raise ValueError(
                f"train_dataset must be a Dataset with the columns {', '.join(required)} for bpe_dropout and augment "
                f"(tokenize_pairs, words=True), got a {type(tokens).__name__} with {', '.join(columns)}."
            )
        self.tokens = tokens.select_columns(required)
        self.retokenizer = retokenizer
        self.seed = seed
        self.epoch: int | None = None
        self.ids: dict[str, list[np.ndarray]] = {}  # token ids of all sources and targets in this epoch

    def set_epoch(self, epoch: int) -> None:
        """Compute the tokens of all pairs for an epoch."""
        if epoch == self.epoch:
            return
        self.epoch = epoch
        self.ids = {name: [] for name in IDS}
        seeds = ((self.seed, epoch, index) for index in range(len(self)))
        for batch in self.tokens.iter(batch_size=1000):
            columns = self.retokenizer.retokenize(batch, [*islice(seeds, len(batch["labels"]))])
            for name, ids in self.ids.items():
                ids += [np.array(tokens, np.int32) for tokens in columns[name]]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {name: ids[index].tolist() for name, ids in self.ids.items()}


def bpe_merges(tokenizer: PreTrainedTokenizerBase) -> dict[tuple[int, int], int]:
    """The result of each merge of two token ids, in the order of their ranks.

    Raises:
        ValueError: the tokenizer has no BPE model, or two of them.
    """
    if tokenizer.init_kwargs.get("target_merges"):
        raise ValueError("bpe_dropout must be 0 for a tokenizer with different merges for sources and targets.")
    model: dict[str, Any] = {"type": type(tokenizer).__name__}
    if hasattr(tokenizer, "backend_tokenizer"):
        serialized = json.loads(tokenizer.backend_tokenizer.to_str())
        model = serialized["model"]
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
