"""Losses and weights that are not finite."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from modeling_random_transformer.training.loss_check import STABILITY_ADVICE, LossCheck, check_weights

INPUTS = {"input_ids": torch.tensor([[5, 6, 2], [7, 2, 0]])}
LOSSES = st.lists(st.sampled_from([0.5, -1.0, math.inf, -math.inf, math.nan]), max_size=6)


@given(LOSSES, st.none() | st.integers(0, 7))
def test_the_first_loss_before_the_end_that_is_not_finite_is_an_error(losses, end):
    check = LossCheck()
    for step, loss in enumerate(losses):
        check.add(step, torch.tensor(loss, requires_grad=True), INPUTS)
    checked = losses[:end]
    bad = [step for step, loss in enumerate(checked) if not math.isfinite(loss)]
    if bad:
        message = f"the loss is {losses[bad[0]]} at step {bad[0] + 1}, in a batch of input_ids [2, 3] whose"
        with pytest.raises(FloatingPointError, match=re.escape(message)):
            check.check(end)
    else:
        check.check(end)
    assert [batch.step for batch in check.unchecked] == [*range(len(checked), len(losses))]


def test_the_message_has_the_source_and_an_advice(tokenizer):
    ids = tokenizer("the boy", return_tensors="pt")["input_ids"]
    for decoder, source in ((tokenizer, repr("the boy")), (None, repr(ids[0]))):
        check = LossCheck(decoder)
        check.add(3, torch.tensor(math.nan), {"input_ids": ids})
        with pytest.raises(FloatingPointError, match=re.escape(f"whose first source is {source}. {STABILITY_ADVICE}")):
            check.check()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_trained_weights_must_be_finite(value):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    check_weights(model, 4)
    with torch.no_grad():
        model[0].weight[1, 1] = value
    model[0].weight.requires_grad = False  # a frozen weight does not change
    check_weights(model, 4)
    with torch.no_grad():
        model[1].bias[0] = value
    with pytest.raises(FloatingPointError, match=r"not finite after step 4, first 1\.bias\. Decrease learning_rate"):
        check_weights(model, 4)
