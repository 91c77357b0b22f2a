"""Evaluation searches as translation does: with the same limit on an output."""

from datasets import Dataset

from modeling_random_transformer.data.corpus import tokenize
from modeling_random_transformer.training import TranslationTrainer, TranslationTrainingArguments
from tests.helpers.models import tiny_model
from tests.helpers.translation import random_tokenizer


def evaluating(model, folder, texts, **options):
    """A trainer, and these texts as a set."""
    tokenizer = random_tokenizer()
    args = TranslationTrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none", **options)
    rows = tokenize({"source": texts, "target": texts}, tokenizer)
    return TranslationTrainer(model, args, processing_class=tokenizer), Dataset.from_dict(rows)


def test_the_longest_output_is_that_of_translation(tmp_path, monkeypatch):
    """A random model without an end: each batch ends at its sources' length, rounded up to 16, and 50 tokens."""
    model = tiny_model(vocab_size=len(random_tokenizer()), max_position_embeddings=1024)
    trainer, rows = evaluating(model, tmp_path, ["a", "a b " * 20], num_beams=1, per_device_eval_batch_size=1)
    limits = []
    generate = model.generate

    def noted(*args, **kwargs):
        limits.append((kwargs["attention_mask"].sum(dim=1).max().item(), kwargs["max_length"]))
        return generate(*args, **{**kwargs, "max_length": 4})

    monkeypatch.setattr(model, "generate", noted)
    trainer.predict(rows)
    assert len(limits) == 2
    for longest, limit in limits:
        assert limit == 1 + -(-longest // 16) * 16 + 50
