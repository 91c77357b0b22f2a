"""transformers' Seq2SeqTrainer: training, saving, resuming and generating."""

import pytest
import torch
from torch.utils.data import Dataset
from transformers import (
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer
from tests.helpers.models import tiny_config

WORDS = ["<pad>", "<s>", "</s>", *"abcdefgh"]


class Reversal(Dataset):
    """Short strings of letters and their reversals."""

    def __init__(self, tokenizer: RandomTransformerTokenizer, size: int, seed: int):
        generator = torch.Generator().manual_seed(seed)
        rows = [torch.randint(3, 11, (3 + i % 3,), generator=generator).tolist() for i in range(size)]
        end = tokenizer.eos_token_id
        self.rows = [
            {"input_ids": [*row, end], "attention_mask": [1, *(1 for _ in row)], "labels": [*row[::-1], end]}
            for row in rows
        ]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict:
        return self.rows[index]


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
        train_dataset=Reversal(tokenizer, 512, seed=1),
        eval_dataset=Reversal(tokenizer, 32, seed=2),
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
    )


@pytest.mark.long
def test_a_trained_model_reverses_strings(tokenizer, tmp_path):
    model = new_model()
    trainer = new_trainer(model, tokenizer, tmp_path, max_steps=300, label_smoothing_factor=0.1)
    trainer.train()
    trainer.save_model()
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path).eval()
    rows = [trainer.eval_dataset[i] for i in range(32)]
    sources = tokenizer.pad({"input_ids": [row["input_ids"] for row in rows]}, return_tensors="pt")
    generated = tokenizer.batch_decode(loaded.generate(**sources, num_beams=2), skip_special_tokens=True)
    expected = tokenizer.batch_decode([row["labels"] for row in rows], skip_special_tokens=True)
    right = sum(ours == theirs for ours, theirs in zip(generated, expected, strict=True))
    assert right >= 29, f"{right} of 32 reversed"


LEARNING = {
    "plain": {},
    "bf16": {"bf16": True},
    "checkpointing": {"gradient_checkpointing": True},
}


@pytest.mark.parametrize("options", LEARNING)
def test_the_loss_decreases(options, tokenizer, tmp_path):
    trainer = new_trainer(new_model(), tokenizer, tmp_path, max_steps=12, logging_steps=3, **LEARNING[options])
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


def test_a_resumed_run_equals_an_uninterrupted_one(tokenizer, tmp_path):
    options = {"max_steps": 8, "save_strategy": "steps", "save_steps": 4}
    whole = new_trainer(new_model(dropout=0.1), tokenizer, tmp_path / "whole", **options)
    whole.train()
    resumed = new_trainer(new_model(dropout=0.1), tokenizer, tmp_path / "resumed", **options)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-4"))
    for name, value in whole.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], value), name


def test_evaluation_generates(tokenizer, tmp_path):
    trainer = new_trainer(new_model(), tokenizer, tmp_path, max_steps=2)
    output = trainer.predict(trainer.eval_dataset, num_beams=2, max_length=10)
    assert output.predictions.shape[0] == 32
    assert output.metrics["test_loss"] > 0
