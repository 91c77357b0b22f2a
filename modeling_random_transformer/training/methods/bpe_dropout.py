"""BPE-dropout (Provilkov et al. 2020, https://aclanthology.org/2020.acl-main.170): random segmentations in training."""

import json
from collections.abc import Sequence
from itertools import groupby, islice, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import Dataset
from transformers import PreTrainedTokenizerBase

from ...data.tokenization import WORDS

if TYPE_CHECKING:
    import datasets  # slow to import

Symbols = tuple[int, ...]
SIDES = ("input_ids", "labels")
NO_MERGE = 2**63  # a sort key after all others
MAX_CACHED_WORDS = 2**16  # at most about 50 MB


class BPEDropout:
    """Segments words with randomly dropped merges.

    A word starts as its smallest symbols. At each step, each possible merge is dropped with probability `dropout`, and
    the first of the others in the tokenizer's order is applied. The segmentation ends when no merge remains. Tokens
    that are not made by merges, such as special tokens, stay as they are.

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
        self.tokenizer, self.dropout, self.max_length = tokenizer, dropout, max_length
        self.merges = bpe_merges(tokenizer)
        self._halves = {merged: pair for pair, (_, merged) in reversed(self.merges.items())}
        self._words: dict[Symbols, tuple[list[int], list[int]]] = {}

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
        dropped = (random.geometric(1 - self.dropout, sum(len(symbols) for symbols, _ in split)) - 1).tolist()
        segmented: list[int] = []
        start = 0
        for word, (symbols, keys) in zip(ordinary, split, strict=True):
            numbers = dropped[start : start + len(symbols)]
            start += len(symbols)
            # Without a dropped merge, the result is the ordinary segmentation.
            segmented += self._merge([*symbols], [*keys], numbers) if any(numbers) else word
        limit = min(self.tokenizer.model_max_length, self.max_length or np.inf)
        return segmented if len(segmented) <= limit else list(ids)

    def _merge(self, symbols: list[int], keys: list[int], dropped: list[int]) -> list[int]:
        """Merge symbols in place; `keys` has the sort key of each two neighbors."""
        starts = list(range(len(symbols)))
        for number in dropped:
            if number >= len(keys):
                break
            key = sorted(keys)[number] if number else min(keys)
            if key == NO_MERGE:
                break
            i = keys.index(key)
            symbols[i : i + 2] = [self.merges[symbols[i], symbols[i + 1]][1]]
            del keys[i], starts[i + 1]
            for left in (i - 1, i):
                if 0 <= left < len(keys):
                    keys[left] = self._key(symbols[left], symbols[left + 1], starts[left])
        return symbols

    def _key(self, left: int, right: int, start: int) -> int:
        """The sort key of a merge: its rank in the tokenizer, then the position of its first symbol in the word."""
        merge = self.merges.get((left, right))
        return NO_MERGE if merge is None else merge[0] << 32 | start

    def _split(self, word: Symbols) -> tuple[list[int], list[int]]:
        """The smallest symbols of a word's tokens, and the sort keys of their merges."""
        found = self._words.get(word)
        if found is None:
            symbols = [symbol for token in word for symbol in self._symbols(token)]
            found = symbols, [self._key(*pair, start) for start, pair in enumerate(pairwise(symbols))]
            if len(self._words) >= MAX_CACHED_WORDS:
                self._words.clear()
            self._words[word] = found
        return found

    def _symbols(self, token: int) -> list[int]:
        if token not in self._halves:
            return [token]
        return [symbol for half in self._halves[token] for symbol in self._symbols(half)]

    def segment_columns(self, rows: dict[str, list], seeds: Sequence[tuple[int, ...]]) -> dict[str, list[list[int]]]:
        """New segmentations of pairs, as columns of token ids.

        Args:
            rows: columns `input_ids` and `labels` with the ordinary segmentation, and the columns of their words.
            seeds: determines the segmentations of each pair.
        """
        randoms = [np.random.default_rng(seed) for seed in seeds]
        input_ids, labels = (
            [self(*text) for text in zip(rows[ids], rows[words], randoms, strict=True)]
            for ids, words in zip(SIDES, WORDS, strict=True)
        )
        return {"input_ids": input_ids, "attention_mask": [[1] * len(ids) for ids in input_ids], "labels": labels}


class BPEDropoutPairs(Dataset):
    """Training pairs with new segmentations in every epoch.

    A segmentation depends on the seed, the epoch and the index of the pair only. Thus neither resuming nor the number
    of workers or processes changes it. `set_epoch` segments all pairs, since their lengths determine the order in a
    `TokenBudgetSampler`, which calls it.

    Args:
        tokens: the result of `tokenize_pairs` with `words=True`.
        bpe_dropout: segments the texts.
        seed: determines the segmentations.

    Raises:
        ValueError: `tokens` has no words.
    """

    def __init__(self, tokens: "datasets.Dataset", bpe_dropout: BPEDropout, seed: int):
        columns = getattr(tokens, "column_names", None) or []
        if not set(WORDS) <= set(columns):
            allowed = f"a Dataset with the columns {' and '.join(WORDS)} for bpe_dropout (tokenize_pairs, words=True)"
            found = f"a {type(tokens).__name__} with {', '.join(columns)}"
            raise ValueError(f"train_dataset must be {allowed}, got {found}.")
        self.tokens = tokens.select_columns([*SIDES, *WORDS])
        self.bpe_dropout, self.seed = bpe_dropout, seed
        self.epoch: int | None = None
        self.ids: list[list[np.ndarray]] = [[], []]  # of each source and of each target in this epoch

    def set_epoch(self, epoch: int) -> None:
        """Segment all pairs for this epoch."""
        if epoch == self.epoch:
            return
        self.epoch, self.ids = epoch, [[], []]
        for batch in self.tokens.iter(batch_size=1000):
            first = len(self.ids[0])
            seeds = [(self.seed, epoch, first + i) for i in range(len(batch["labels"]))]
            columns = self.bpe_dropout.segment_columns(batch, seeds)
            for ids, name in zip(self.ids, SIDES, strict=True):
                ids += [np.array(text, np.int32) for text in columns[name]]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        source, target = (ids[index].tolist() for ids in self.ids)
        return {"input_ids": source, "attention_mask": [1] * len(source), "labels": target}


def bpe_merges(tokenizer: PreTrainedTokenizerBase) -> dict[tuple[int, int], tuple[int, int]]:
    """The rank and the result of each merge of two token ids.

    Raises:
        ValueError: the tokenizer has no BPE model, or two of them.
    """
    if tokenizer.init_kwargs.get("target_merges"):
        raise ValueError("bpe_dropout must be 0 for a tokenizer with different merges for sources and targets.")
    backend = getattr(tokenizer, "backend_tokenizer", None)
    model: dict[str, Any] = json.loads(backend.to_str())["model"] if backend else {"type": type(tokenizer).__name__}
    if model["type"] != "BPE":
        raise ValueError(f"bpe_dropout must be 0 for a tokenizer without BPE merges, got a {model['type']} tokenizer.")
    ids, prefix = model["vocab"], model.get("continuing_subword_prefix") or ""
    return {
        (ids[left], ids[right]): (rank, ids[left + right.removeprefix(prefix)])
        for rank, (left, right) in enumerate(model["merges"])
    }
