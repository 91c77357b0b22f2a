"""Encoder outputs of other classes as inputs, and empty batches."""

import pytest
import torch
from transformers import Trainer, TrainingArguments
from transformers.modeling_outputs import (
    BaseModelOutput,
    BaseModelOutputWithPooling,
    Seq2SeqModelOutput,
)

from tests.helpers.models import padded_batch, random_ids, tiny_model


@pytest.mark.parametrize(
    "wrap",
    [
        lambda states: BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=states[:, 0]),
        lambda states: Seq2SeqModelOutput(last_hidden_state=states, encoder_last_hidden_state=states),
        lambda states: {"last_hidden_state": states},
        lambda states: [states, None, None],
        lambda states: (states, None, None, "more"),
    ],
)
def test_encoder_outputs_of_any_class(wrap):
    model, source = tiny_model(), padded_batch([5, 3])
    target, mask = random_ids(2, 4), source["attention_mask"]
    states = model.get_encoder()(**source).last_hidden_state
    output = model(encoder_outputs=wrap(states), attention_mask=mask, decoder_input_ids=target)
    assert torch.equal(output.logits, model(**source, decoder_input_ids=target).logits)
    assert torch.equal(output.encoder_last_hidden_state, states)


@pytest.mark.parametrize(
    ("outputs", "found"),
    [(BaseModelOutput(), "BaseModelOutput"), ({}, "dict"), ((), "tuple"), (torch.zeros(2, 5, 16), "Tensor")],
    ids=["output", "dict", "tuple", "tensor"],
)
def test_encoder_outputs_without_states_raise(outputs, found):
    message = f"encoder_outputs must be a ModelOutput with a last_hidden_state or a tuple, got {found}"
    with pytest.raises(ValueError, match=message):
        tiny_model()(encoder_outputs=outputs, decoder_input_ids=random_ids(2, 4))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_empty_batch_has_loss_0(attention):
    model = tiny_model(attn_implementation=attention)
    empty = torch.zeros(0, 5, dtype=torch.long)
    output = model(empty, attention_mask=empty, labels=empty)
    output.loss.backward()
    assert output.loss == 0
    assert output.logits.shape == (0, 5, 61)


def test_batch_without_labels_leaves_weights_finite(tmp_path):
    """One of three batches has ignored labels only."""
    model = tiny_model()
    rows = [{"input_ids": random_ids(1, 4, row)[0], "labels": random_ids(1, 4, row)[0]} for row in range(3)]
    rows[1]["labels"] = torch.full((4,), -100)
    options = {"per_device_train_batch_size": 1, "num_train_epochs": 1, "report_to": "none", "save_strategy": "no"}
    arguments = TrainingArguments(tmp_path, use_cpu=True, disable_tqdm=True, **options)
    Trainer(model, arguments, train_dataset=rows).train()
    assert all(parameter.isfinite().all() for parameter in model.parameters())
