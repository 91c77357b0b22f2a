"""The quickstart's translator and its sentences. Shared by the exercises that examine a trained model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from modeling_random_transformer.extras.inspection import Trace, trace
from modeling_random_transformer.inference.loading import load_translator

from ..training_helpers import Pairs, translate

BATCH = 100  # sentences


@dataclass
class Translator:
    """A trained model.

    Attributes:
        model: in evaluation mode.
        tokenizer: its tokenizer.
        train: the sentence pairs of its training.
        test: other sentence pairs.
    """

    model: Any
    tokenizer: Any
    train: Pairs
    test: Pairs

    def encode(self, pairs: Pairs) -> dict[str, Tensor]:
        """Token ids and attention mask of the sources, `labels` of the targets with -100 for padding."""
        sources, targets = map(list, zip(*pairs, strict=True))
        inputs = dict(self.tokenizer(sources, text_target=targets, padding=True, return_tensors="pt"))
        inputs["labels"] = inputs["labels"].masked_fill(inputs["labels"] == self.tokenizer.pad_token_id, -100)
        return inputs

    def batches(self, pairs: Pairs) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(pairs), BATCH):
            yield self.encode(pairs[start : start + BATCH])

    @torch.no_grad()
    def traces(self, pairs: Pairs, **options: Any) -> Iterator[tuple[dict[str, Tensor], Trace]]:
        """The inputs of each batch and what the model computes for them, with the correct target as decoder input."""
        for inputs in self.batches(pairs):
            with trace(self.model, **options) as recorded:
                self.model(**inputs)
            yield inputs, recorded

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """The text of each token, without spaces."""
        return [self.tokenizer.decode([index]).strip() for index in ids]

    def exact_match(self, pairs: Pairs) -> float:
        """The fraction of greedy translations that equal the reference."""
        sources, references = map(list, zip(*pairs, strict=True))
        longest = max(map(len, self.tokenizer(references)["input_ids"]))  # a modified model may not end
        translations = translate(self.model, self.tokenizer, sources, do_sample=False, max_new_tokens=longest + 2)
        return sum(x == y for x, y in zip(translations, references, strict=True)) / len(pairs)


def load_trained(folder: Path) -> Translator:
    """The model and the data that `python examples/quickstart.py` has saved in a folder.

    Raises:
        ValueError: the folder has no such model or data.
    """
    model, tokenizer = load_translator(folder, argument="--model")
    return Translator(model.eval(), tokenizer, *(read_pairs(folder / "data", part) for part in ("train", "test")))


def read_pairs(folder: Path, part: str) -> Pairs:
    paths = [folder / f"{part}.{language}" for language in ("en", "es")]
    for path in paths:
        if not path.is_file():
            raise ValueError(f"--model must be trained by the quickstart on its sample data, got no {path}.")
    return list(zip(*(path.read_text(encoding="utf-8").splitlines() for path in paths), strict=True))
