"""Evaluation searches as translation does: sorted, batched by tokens, with the same limit."""

import pytest
from datasets import Dataset
from support import tiny_model
from translation_support import SENTENCES, random_tokenizer, random_translator, some_texts

from modeling_random_transformer.training import TranslationTrainer, TranslationTrainingArguments
from modeling_random_transformer.training.corpus import tokenize
from modeling_random_transformer.training.evaluation import EvaluationBatches
from modeling_random_transformer.translation import Translator, translate


def evaluating(model, folder, texts, **options):
    """A trainer, and these texts as a set."""
    tokenizer = random_tokenizer()
    args = TranslationTrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none", **options)
    rows = tokenize({"source": texts, "target": texts}, tokenizer)
    return TranslationTrainer(model, args, processing_class=tokenizer), Dataset.from_dict(rows)


@pytest.mark.parametrize("num_beams", [1, 3])
def test_the_predictions_are_the_translations(num_beams, tmp_path):
    texts = [*some_texts(20), *SENTENCES]
    model = random_translator()
    trainer, rows = evaluating(model, tmp_path, texts, num_beams=num_beams, max_tokens_per_batch=200)
    output = trainer.predict(rows, **trainer.args.search)
    ids = [[token for token in row if token >= 0] for row in output.predictions.tolist()]
    tokenizer = trainer.processing_class
    assert tokenizer.batch_decode(ids, skip_special_tokens=True) == translate(
        texts, model, tokenizer, num_beams=num_beams, max_batch_tokens=200
    )
    labels = [[token for token in row if token >= 0] for row in output.label_ids.tolist()]
    assert tokenizer.batch_decode(labels, skip_special_tokens=True) == texts


def test_the_longest_output_is_that_of_translation(tmp_path, monkeypatch):
    """A random model without an end: each batch ends at its sources' length, rounded up to 16, and 50 tokens."""
    model = tiny_model(vocab_size=len(random_tokenizer()), max_position_embeddings=1024)
    trainer, rows = evaluating(model, tmp_path, ["a", "a b " * 20], num_beams=1)
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


@pytest.mark.parametrize("processes", [1, 2, 4])
def test_every_row_is_evaluated_once(processes):
    model = random_translator()
    translator = Translator(model, random_tokenizer(), max_batch_tokens=60 * processes, num_beams=2)
    lengths = [3 + i % 17 for i in range(41)]
    parts = [EvaluationBatches(translator, lengths, 5, index, processes) for index in range(processes)]
    assert sorted(parts[0].order) == list(range(41))
    for size, *shares in zip(parts[0].sizes, *parts, strict=True):
        assert len({len(share) for share in shares}) == 1  # what is gathered must have one size
        assert len(shares[0]) <= 5
        gathered = [row for share in shares for row in share]
        assert gathered[size:] == gathered[size - 1 : size] * (len(gathered) - size)


def test_the_loss_is_the_mean_over_the_rows(tmp_path):
    texts = some_texts(9)
    trainer, rows = evaluating(random_translator(), tmp_path, texts, predict_with_generate=False)
    whole = trainer.predict(rows).metrics["test_loss"]
    assert whole > 0
