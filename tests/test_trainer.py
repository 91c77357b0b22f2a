"""transformers' Seq2SeqTrainer: training, saving, resuming and generating."""

import pytest
import torch
from transformers import (
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer
from tests.helpers.models import tiny_config

WORDS = ["<pad>", "<s>", "</s>", *"abcdefgh"]


def reversals(size: int, seed: int) -> list[dict]:
    """Short strings of letters and their reversals, each with the end token."""
    generator = torch.Generator().manual_seed(seed)
    rows = [torch.randint(3, 11, (3 + i % 3,), generator=generator).tolist() for i in range(size)]
    return [{"input_ids": [*row, 2], "attention_mask": [1] * (len(row) + 1), "labels": [*row[::-1], 2]} for row in rows]


@pytest.fixture(scope="module")
def tokenizer():
    return RandomTransformerTokenizer.from_words(WORDS, bos_token="<s>", eos_token="</s>", pad_token="<pad>")


def new_model(**overrides):
    set_seed(0)
    options = {"vocab_size": 11, "d_model": 32, "d_ff": 64, "num_heads": 4, "decoder_layers": 2}
    return RandomTransformerForConditionalGeneration(tiny_config(**options | overrides))


def new_trainer(model, tokenizer, folder, **overrides):
    options = {"learning_rate": 3e-3, "warmup_steps": 5, "save_strategy": "no", "logging_steps": 10, "use_cpu": True}
    options |= {"per_device_train_batch_size": 32, "per_device_eval_batch_size": 32, "generation_max_length": 10}
    options |= {"report_to": "none", "disable_tqdm": True, "predict_with_generate": True}
    return Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(output_dir=str(folder), **options | overrides),
        train_dataset=reversals(512, seed=1),
        eval_dataset=reversals(32, seed=2),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )


@pytest.mark.parametrize("options", [{}, {"bf16": True}, {"gradient_checkpointing": True}], ids=str)
def test_the_loss_decreases(options, tokenizer, tmp_path):
    trainer = new_trainer(new_model(), tokenizer, tmp_path, max_steps=12, logging_steps=3, **options)
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[-1] < 0.9 * losses[0]


def test_accumulated_batches_equal_one_large_batch(tokenizer, tmp_path):
    """The loss of a step is the mean over all of its tokens, regardless of how they are split."""
    losses = []
    for size, accumulated in ((32, 1), (8, 4)):
        options = {"per_device_train_batch_size": size, "gradient_accumulation_steps": accumulated}
        trainer = new_trainer(new_model(), tokenizer, tmp_path, max_steps=3, logging_steps=1, **options)
        trainer.train()
        losses.append([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
