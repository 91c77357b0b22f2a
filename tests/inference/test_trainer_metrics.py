"""`translation_metrics` on token ids and in `Seq2SeqTrainer`."""

import json
import pickle
import sys

import numpy as np
import pytest
from transformers import (
    DataCollatorForSeq2Seq,
    EvalPrediction,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    set_seed,
)

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer
from modeling_random_transformer.inference.evaluation import score, translation_metrics
from tests.helpers.models import BOS, PAD, tiny_config
from tests.helpers.texts import PREDICTIONS, REFERENCES

IGNORED = -100  # the Trainer's padding


@pytest.fixture(scope="module")
def tokenizer():
    return RandomTransformerTokenizer.train(PREDICTIONS + REFERENCES, vocab_size=300)


def padded(rows: list[list[int]]) -> np.ndarray:
    longest = max(len(row) for row in rows)
    return np.array([row + [IGNORED] * (longest - len(row)) for row in rows])


@pytest.fixture(scope="module")
def generated(tokenizer):
    """Predictions of the Trainer: a start token, and padding by `generate` and by the Trainer."""
    return padded([[BOS, *tokenizer(text).input_ids, PAD, PAD] for text in PREDICTIONS])


@pytest.fixture(scope="module")
def labels(tokenizer):
    return padded(tokenizer(REFERENCES).input_ids)


def test_scores_of_token_ids_equal_scores_of_texts(tokenizer, generated, labels):
    result = translation_metrics(tokenizer)(EvalPrediction(predictions=generated, label_ids=labels))
    expected = score(PREDICTIONS, REFERENCES)
    assert list(result) == ["bleu", "chrf", "generated_length"]
    assert result["bleu"] == expected["bleu"]["score"]
    assert result["chrf"] == expected["chrf"]["score"]
    lengths = [len(tokenizer(text, add_special_tokens=False).input_ids) for text in PREDICTIONS]
    assert result["generated_length"] == sum(lengths) / len(lengths)
    assert {type(value) for value in result.values()} == {float}
    assert json.loads(json.dumps(result)) == result


def test_tokenization_spaces_are_kept():
    """A space before a comma is an error of the model; a tokenizer that removes it would hide it."""
    texts = ["where is it , I wonder .", "it is where it is ."]
    references = ["where is it I wonder .", "it is where I wonder ."]
    words = sorted({word for text in texts for word in text.split()})
    tokenizer = RandomTransformerTokenizer.from_words(
        ["SOS", "EOS", *words], bos_token="SOS", eos_token="EOS", clean_up_tokenization_spaces=True
    )
    assert tokenizer.decode(tokenizer(texts[0]).input_ids, skip_special_tokens=True) == "where is it, I wonder."
    prediction = EvalPrediction(padded(tokenizer(texts).input_ids), padded(tokenizer(references).input_ids))
    result = translation_metrics(tokenizer, tokenize="none", whitespace=True)(prediction)
    expected = score(texts, references, tokenize="none", whitespace=True)
    assert (result["bleu"], result["chrf"]) == (expected["bleu"]["score"], expected["chrf"]["score"])


def test_formats_of_predictions(tokenizer, generated, labels):
    compute_metrics = translation_metrics(tokenizer)
    expected = compute_metrics(EvalPrediction(generated, labels))
    assert compute_metrics(EvalPrediction((generated, np.zeros(3)), (labels, np.zeros(3)))) == expected
    assert compute_metrics(EvalPrediction(np.where(generated < 0, PAD, generated), labels)) == expected
    assert compute_metrics(EvalPrediction(generated.astype(np.int32), labels.tolist())) == expected
    assert pickle.loads(pickle.dumps(compute_metrics))(EvalPrediction(generated, labels)) == expected


def test_empty_predictions_and_unknown_ids(tokenizer, labels):
    """Predictions may be empty, and the model's vocabulary may be larger than the tokenizer's."""
    empty = np.full((len(labels), 4), IGNORED)
    result = translation_metrics(tokenizer)(EvalPrediction(empty, labels))
    assert result == {"bleu": 0.0, "chrf": 0.0, "generated_length": 0.0}
    empty[:] = len(tokenizer) + 5
    result = translation_metrics(tokenizer)(EvalPrediction(empty, labels))
    assert (result["bleu"], result["generated_length"]) == (0.0, 4.0)


def test_end_token_that_is_also_the_padding_token():
    words = RandomTransformerTokenizer.from_words(["EOS", "SOS", *"abcde"], bos_token="SOS", eos_token="EOS")
    assert words.pad_token_id == words.eos_token_id == 0
    ids = np.array([[1, 2, 3, 4, 5, 0, 0], [1, 6, 5, 4, 3, 2, 0]])
    result = translation_metrics(words)(EvalPrediction(ids, ids))
    assert result == pytest.approx({"bleu": 100, "chrf": 100, "generated_length": 4.5})


def test_invalid_options_raise_error_before_training(tokenizer, monkeypatch):
    with pytest.raises(ValueError, match=r"tokenize must be one of .* got 'klingon'"):
        translation_metrics(tokenizer, tokenize="klingon")
    with pytest.raises(ValueError, match="metrics must be one of 'bleu', 'chrf', got 'ter'"):
        translation_metrics(tokenizer, metrics=("ter",))
    monkeypatch.setitem(sys.modules, "MeCab", None)  # not installed
    with pytest.raises(RuntimeError, match=r"pip install sacrebleu\[ja\]"):
        translation_metrics(tokenizer, tokenize="ja-mecab")


def test_predictions_that_are_not_token_ids_raise_value_error(tokenizer, generated, labels):
    compute_metrics = translation_metrics(tokenizer)
    logits = np.zeros((*labels.shape, 300), dtype=np.float32)
    message = "predictions must be token ids .*predict_with_generate=True.*, got rows of 2 dimensions of float32"
    with pytest.raises(ValueError, match=message):
        compute_metrics(EvalPrediction((logits, None), labels))
    with pytest.raises(ValueError, match=r"label_ids must be token ids .*, got None"):
        compute_metrics(EvalPrediction(generated, None))
    with pytest.raises(ValueError, match="got 2 predictions and 9 with references"):
        compute_metrics(EvalPrediction(generated[:2], labels))


def new_trainer(tokenizer, folder, **overrides):
    set_seed(0)
    model = RandomTransformerForConditionalGeneration(tiny_config(vocab_size=len(tokenizer)))
    rows = [dict(tokenizer(ours, text_target=theirs)) for ours, theirs in zip(PREDICTIONS, REFERENCES, strict=True)]
    options = {"max_steps": 2, "eval_strategy": "steps", "eval_steps": 1, "save_strategy": "no", "report_to": "none"}
    options |= {"use_cpu": True, "disable_tqdm": True, "predict_with_generate": True, "generation_max_length": 12}
    return Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            str(folder), per_device_train_batch_size=4, per_device_eval_batch_size=4, **options | overrides
        ),
        train_dataset=rows,
        eval_dataset=rows,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=translation_metrics(tokenizer),
    )


def test_seq2seq_trainer_reports_metrics(tokenizer, tmp_path):
    trainer = new_trainer(tokenizer, tmp_path, metric_for_best_model="chrf", greater_is_better=True)
    trainer.train()
    reports = [entry for entry in trainer.state.log_history if "eval_bleu" in entry]
    assert [entry["step"] for entry in reports] == [1, 2]
    for entry in reports:
        assert 0 <= entry["eval_bleu"] <= 100
        assert 0 <= entry["eval_chrf"] <= 100
        assert 0 <= entry["eval_generated_length"] <= 11
    output = trainer.predict(trainer.eval_dataset, num_beams=2)
    texts = [[token for token in row if token >= 0] for row in output.predictions.tolist()]
    texts = tokenizer.batch_decode(texts, skip_special_tokens=True)
    assert output.metrics["test_chrf"] == score(texts, REFERENCES)["chrf"]["score"]
