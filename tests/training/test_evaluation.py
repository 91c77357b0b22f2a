"""Evaluation and translation have the same limit on the output length."""

from datasets import Dataset

from modeling_random_transformer.data.tokenization import tokenize_batch
from modeling_random_transformer.training import TranslationTrainer, TranslationTrainingArguments
from tests.helpers.models import tiny_model
from tests.helpers.translation import random_tokenizer


def build_trainer(model, folder, texts, **options):
    """A trainer, and these texts as a tokenized set."""
    tokenizer = random_tokenizer()
    args = TranslationTrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none", **options)
    rows = tokenize_batch({"source": texts, "target": texts}, tokenizer)
    return TranslationTrainer(model, args, processing_class=tokenizer), Dataset.from_dict(rows)


def test_the_output_limit_equals_that_of_translation(tmp_path, monkeypatch):
    """The limit of a batch is the longest source, rounded up to a multiple of 16, plus 50."""
    model = tiny_model(vocab_size=len(random_tokenizer()), max_position_embeddings=1024)
    trainer, rows = build_trainer(model, tmp_path, ["a", "a b " * 20], num_beams=1, per_device_eval_batch_size=1)
    limits = []
    generate = model.generate

    def recorded(*args, **kwargs):
        limits.append((kwargs["attention_mask"].sum(dim=1).max().item(), kwargs["max_length"]))
        return generate(*args, **{**kwargs, "max_length": 4})

    monkeypatch.setattr(model, "generate", recorded)
    trainer.predict(rows)
    assert len(limits) == 2
    for longest, limit in limits:
        assert limit == 1 + -(-longest // 16) * 16 + 50
