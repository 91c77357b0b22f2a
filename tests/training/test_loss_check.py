"""Losses and weights that are not finite, and models with another loss."""

import math
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from peft import LoraConfig, get_peft_model
from torch import nn
from transformers import MarianConfig, MarianMTModel

from modeling_random_transformer import RandomTransformerForConditionalGeneration, modeling_random_transformer
from modeling_random_transformer.modeling_random_transformer import RandomTransformerPreTrainedModel
from modeling_random_transformer.training import train_translation
from modeling_random_transformer.training.loss_check import (
    ADVICE,
    LossCheck,
    check_causality,
    check_edited_model,
    check_weights,
)
from tests.helpers.models import tiny_model
from tests.helpers.trainer import new_trainer
from tests.helpers.training import parsed

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
        with pytest.raises(FloatingPointError, match=re.escape(f"whose first source is {source}. {ADVICE}")):
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


def summed_loss(logits, labels, **_):
    return nn.functional.cross_entropy(logits.transpose(1, 2), labels, reduction="sum")


def test_a_loss_of_the_model_that_training_would_ignore_is_an_error(tmp_path, corpus, monkeypatch):
    message = "loss_function of the model must be smoothed_cross_entropy, got summed_loss: training would ignore it"
    trainer = new_trainer(tmp_path)
    trainer.model.loss_function = summed_loss
    with pytest.raises(ValueError, match=message):
        trainer.train()
    assert trainer.state.global_step == 0
    post_init = RandomTransformerForConditionalGeneration.post_init

    def with_summed_loss(model):
        model.loss_function = summed_loss
        post_init(model)

    monkeypatch.setattr(RandomTransformerForConditionalGeneration, "post_init", with_summed_loss)
    (corpus / "train.a").write_bytes(b"\xff")  # another error, if it was read
    with pytest.raises(ValueError, match=message):  # before the corpus is read
        train_translation(*parsed(corpus, "out"))


def test_attention_to_later_positions_is_an_error_before_the_corpus_is_read(tmp_path, corpus, monkeypatch):
    """A formula in the place of SDPA, which ignores that a mask of `None` is causal there."""
    state = torch.get_rng_state()
    check_causality()
    assert torch.equal(torch.get_rng_state(), state)

    def formula(attention_mask, **_):
        return "eager", attention_mask

    monkeypatch.setattr(modeling_random_transformer, "select_attention", formula)
    (corpus / "train.a").write_bytes(b"\xff")  # another error, if it was read
    with pytest.raises(ValueError, match="attention of the decoder must hide later positions, but a position depends"):
        train_translation(*parsed(corpus, "out"))
    with pytest.raises(ValueError, match="attention of the decoder must hide later positions"):
        new_trainer(tmp_path).train()
    monkeypatch.setattr(RandomTransformerPreTrainedModel, "_supports_sdpa", False)  # the advice of the message
    check_causality()


def test_the_loss_of_adapted_models_is_checked_and_that_of_other_models_is_not():
    adapted = get_peft_model(tiny_model(), LoraConfig(target_modules=["q_proj"]))
    check_edited_model(adapted)
    adapted.get_base_model().loss_function = summed_loss
    with pytest.raises(ValueError, match="got summed_loss"):
        check_edited_model(adapted)
    sizes = {"d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "vocab_size": 9}
    heads = {"encoder_attention_heads": 2, "decoder_attention_heads": 2}
    check_edited_model(MarianMTModel(MarianConfig(**sizes, **heads, pad_token_id=0, decoder_start_token_id=0)))
