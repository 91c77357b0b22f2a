"""transformers' Seq2SeqTrainer and Trainer."""

import pytest
import torch
from datasets import Dataset
from torch.nn.functional import cross_entropy
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainingArguments

from modeling_random_transformer import RandomTransformerForCausalLM, RandomTransformerForSequenceClassification
from tests.helpers.models import random_ids, tiny_config, tiny_model
from tests.helpers.trainer import VOCAB_SIZE, pairs


@pytest.mark.parametrize("options", [{}, {"bf16": True, "gradient_checkpointing": True}], ids=str)
def test_accumulated_batches_equal_one_large_batch(options, tokenizer, tmp_path):
    """The loss of a step is the mean over all of its tokens, regardless of how they are split."""
    options |= {"learning_rate": 1e-2, "max_steps": 8, "logging_steps": 1, "save_strategy": "no", "report_to": "none"}
    losses = []
    for size, accumulated in ((32, 1), (8, 4)):
        batches = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
        trainer = Seq2SeqTrainer(
            model=tiny_model(vocab_size=VOCAB_SIZE),
            args=Seq2SeqTrainingArguments(tmp_path, use_cpu=True, disable_tqdm=True, **options | batches),
            train_dataset=pairs(256).select_columns(["input_ids", "labels"]),
            data_collator=DataCollatorForSeq2Seq(tokenizer),
        )
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-2 if "bf16" in options else 1e-3)
    assert losses[0][-1] < 0.9 * losses[0][0]


@pytest.mark.parametrize(
    ("num_labels", "label"), [(1, lambda i: float(i)), (3, lambda i: i % 3), (3, lambda i: [float(i % 2), 1.0, 0.0])]
)
def test_accumulated_batches_of_texts_with_classes_and_numbers(num_labels, label, tmp_path):
    rows = [{"input_ids": ids, "labels": label(i)} for i, ids in enumerate(random_ids(16, 5).tolist())]
    losses = []
    for size, accumulated in ((8, 1), (2, 4)):
        torch.manual_seed(0)
        batches = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
        options = {"max_steps": 2, "logging_steps": 1, "save_strategy": "no", "report_to": "none", "max_grad_norm": 0}
        trainer = Trainer(
            model=RandomTransformerForSequenceClassification(tiny_config(num_labels=num_labels)),
            args=TrainingArguments(tmp_path, use_cpu=True, disable_tqdm=True, optim="sgd", **options | batches),
            train_dataset=Dataset.from_list(rows),
        )
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_label_smoothing_of_a_language_model(tmp_path):
    """Without shifted labels, it would learn to repeat the last token."""
    ids = random_ids(4, 6)
    model = RandomTransformerForCausalLM(tiny_config())
    logits = model(ids).logits[:, :-1]
    options = {"label_smoothing_factor": 0.1, "max_steps": 1, "logging_steps": 1, "save_strategy": "no"}
    trainer = Trainer(
        model=model,
        args=TrainingArguments(tmp_path, use_cpu=True, disable_tqdm=True, report_to="none", **options),
        train_dataset=Dataset.from_dict({"input_ids": ids.tolist(), "labels": ids.tolist()}),
    )
    trainer.train()
    expected = cross_entropy(logits.transpose(1, 2), ids[:, 1:], label_smoothing=0.1)
    assert trainer.state.log_history[0]["loss"] == pytest.approx(expected.item(), rel=1e-4)
