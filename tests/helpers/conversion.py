"""What the tests of all conversions share: the comparison with an original, and files that are rejected."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from modeling_random_transformer.extras.conversion import ConversionReport
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


def assert_same_as_reference(model: PreTrainedModel, tokenizer: Any, report: ConversionReport, original: Any) -> None:
    """Check the logits and the search of a converted model with a joined tokenizer, and that no weight is left out.

    Args:
        model: the converted model.
        tokenizer: its tokenizer.
        report: the report of the conversion.
        original: the `Original` with the same weights.
    """
    batch = tokenizer(["s1 s2 hello s3", "s3"], padding=True, return_tensors="pt")
    target = torch.tensor([[tokenizer.bos_token_id, 5, 9, 40], [tokenizer.bos_token_id, 8, 7, 6]])
    with torch.no_grad():
        actual = model(**batch, decoder_input_ids=target).logits[..., original.known]
        expected = original(*batch.values(), target)[..., original.known]
    assert (actual - expected).abs().max() < 1e-5 * expected.abs().max()
    assert same_search(model, original, batch, beams=4)
    assert {m.target for m in report.mapped} | set(report.defaults) == {name for name, _ in model.named_parameters()}


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


def check_conversion_error(message: str, folder: Path, convert: Callable[..., Any], *args: Any, **options: Any) -> None:
    """Check that a conversion fails with one short line, and writes nothing in a folder."""
    before = sorted(folder.rglob("*"))
    with pytest.raises(ValueError, match=message) as caught:
        convert(*args, **options)
    text = str(caught.value)
    assert text.isprintable()
    assert len(text) < 1000
    assert sorted(folder.rglob("*")) == before
