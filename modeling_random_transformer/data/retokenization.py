"""Training pairs with new tokens in every epoch."""

from collections.abc import Sequence
from itertools import islice
from typing import TYPE_CHECKING, Protocol

import numpy as np
from torch.utils.data import Dataset

from .sources import SIDES
from .tokenization import ID_COLUMNS, WORD_COLUMNS

if TYPE_CHECKING:
    import datasets  # slow to import

Seeds = Sequence[tuple[int, ...]]
TokenIds = dict[str, list[list[int]]]  # the token ids of sources and targets, by the column


class Retokenizer(Protocol):
    """Changes the tokens of pairs at random: `BPEDropout`, `Augmentation`."""

    def retokenize(self, rows: dict[str, list], seeds: Seeds) -> TokenIds:
        """New tokens of pairs, as columns of token ids; see `BPEDropout.retokenize`."""


class RetokenizedPairs(Dataset):
    """Training pairs with new tokens in every epoch, by BPE-dropout or augmentation.

    The tokens depend on the seed, the epoch and the index of the pair only, so neither resuming nor the number of
    workers or processes changes them. `TokenBudgetSampler` calls `set_epoch`, which tokenizes all pairs, because their
    lengths determine the order of the batches.

    Args:
        tokens: the result of `tokenize_pairs` with `with_words=True`.
        retokenizer: `BPEDropout` or `Augmentation`, which computes the tokens.
        seed: determines the tokens.

    Raises:
        ValueError: `tokens` has no texts and words.
    """

    def __init__(self, tokens: "datasets.Dataset", retokenizer: Retokenizer, seed: int):
        columns = getattr(tokens, "column_names", None) or []
        required = [*ID_COLUMNS, *WORD_COLUMNS, *SIDES]
        if not {*required} <= {*columns}:
            raise ValueError(
                f"train_dataset must be a Dataset with the columns {', '.join(required)} for bpe_dropout and augment "
                f"(tokenize_pairs, with_words=True), got a {type(tokens).__name__} with {', '.join(columns)}."
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
        self.ids = {name: [] for name in ID_COLUMNS}
        seeds = ((self.seed, epoch, index) for index in range(len(self)))
        for batch in self.tokens.iter(batch_size=1000):
            columns = self.retokenizer.retokenize(batch, [*islice(seeds, len(batch["labels"]))])
            for name, ids in self.ids.items():
                ids += [np.array(tokens, np.int32) for tokens in columns[name]]

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return {name: ids[index].tolist() for name, ids in self.ids.items()}
