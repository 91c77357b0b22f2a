"""What the tests of all conversions share: the comparison with an original, and files that are rejected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from tests.helpers.references import Logits, relative_difference, same_search


class Call:
    """Is pickled as a call of a function."""

    def __init__(self, function: Any, *args: Any):
        self.function, self.args = function, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self.function, self.args


def assert_same(
    model: PreTrainedModel, original: Logits, sizes: tuple[int, int], pad: int, search: bool = True
) -> None:
    """Check that logits, and greedy and beam search, are those of the original.

    Args:
        model: the converted model.
        original: the original's logits.
        sizes: the original's source and target vocabulary.
        pad: the id of the padding, below 4.
        search: compare the search too.
    """
    assert relative_difference(model, original, vocabularies=sizes) < 1e-5
    if search:
        batch = batch_of(sizes[0], pad)
        for beams in (1, 4):
            assert same_search(model, pad_vocabulary(original, model.config.vocab_size), batch, beams)


def batch_of(tokens: int, pad: int) -> dict[str, Tensor]:
    """Three sources of different lengths with ids from 4."""
    mask = (torch.arange(8) < torch.tensor([8, 5, 2])[:, None]).long()
    ids = torch.randint(4, tokens, mask.shape, generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids.where(mask.bool(), torch.tensor(pad)), "attention_mask": mask}


def pad_vocabulary(original: Logits, size: int) -> Logits:
    """The original's logits, -inf for ids outside its vocabulary."""

    def logits(*inputs: Tensor) -> Tensor:
        known = original(*inputs)
        return torch.cat([known, known.new_full((*known.shape[:-1], size - known.shape[-1]), -torch.inf)], dim=-1)

    return logits


def check_refused(message: str, folder: Path, convert: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Check that a conversion fails with one short line, and writes nothing in a folder."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match=message) as caught:
        convert(*args, **options)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 1000
    assert sorted(folder.rglob("*")) == before
