"""Evaluation of the trainer: order and loss, precision, predictions without references, saved options."""

import numpy as np
import pytest
import torch

from modeling_random_transformer.inference import longest_target, translate
from modeling_random_transformer.pipeline_random_transformer import Seq2SeqPipeline
from tests.helpers.trainer import new_trainer, pairs


def test_predictions_are_in_the_order_of_the_data_set(tmp_path):
    rows = pairs(9)
    trainer = new_trainer(tmp_path, eval_dataset=rows, num_beams=1)
    output = trainer.predict(trainer.eval_dataset)
    assert len(output.predictions) == len(rows)
    for row, predicted, labels in zip(rows, output.predictions, output.label_ids, strict=True):
        source = torch.tensor([row["input_ids"]])
        limit = longest_target(source.shape[1], trainer.model.config)
        alone = trainer.model.generate(source, max_length=1 + limit)[0].tolist()
        assert [token for token in predicted.tolist() if token > 0] == [token for token in alone if token > 0]
        assert labels[: row["target_length"]].tolist() == row["labels"]
    # Metrics get the same order; a data set may be a list.
    trainer.evaluate(rows.to_list())
    assert np.array_equal(trainer.seen.label_ids, output.label_ids)
    assert np.array_equal(trainer.seen.predictions, output.predictions)


def test_the_evaluation_loss_does_not_depend_on_the_batch_size(tmp_path):
    rows = pairs(8)
    options = {"per_device_eval_batch_size": 3, "label_smoothing_factor": 0.0, "predict_with_generate": False}
    trainer = new_trainer(tmp_path, eval_dataset=rows, **options)
    batch = trainer.data_collator([{name: row[name] for name in ("input_ids", "labels")} for row in rows])
    expected = trainer.model.eval()(**batch).loss.item()
    assert trainer.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-5)


def test_evaluation_in_mixed_precision_decodes_with_the_fast_path(tmp_path):
    trainer = new_trainer(tmp_path, eval_dataset=pairs(4), bf16=True)
    forward = trainer.model.forward
    trainer.predict(trainer.eval_dataset)
    assert trainer.model.forward == forward
    assert trainer.model.eval().fallback_reason() is None


def test_predictions_need_no_references(tmp_path):
    rows = pairs(5)
    trainer = new_trainer(tmp_path, eval_dataset=rows)
    expected = trainer.predict(rows)
    output = trainer.predict(rows.select_columns(["input_ids"]))
    assert output.predictions.tolist() == expected.predictions.tolist()
    assert output.label_ids is None
    assert "test_loss" not in output.metrics
    trainer.predict(rows.select_columns(["input_ids"]).to_list(), num_beams=1)


# Options of a saved generation config

SAVED_OPTIONS = [
    {"num_beams": 4, "num_return_sequences": 2},
    {"return_dict_in_generate": True, "output_scores": True},
    {"do_sample": True, "temperature": 5.0},
    {"max_new_tokens": 2},
    {"stop_strings": ["never in an output"]},
]


@pytest.mark.parametrize("num_beams", [1, 3])
@pytest.mark.parametrize("saved", SAVED_OPTIONS, ids=str)
def test_saved_options_of_outputs_have_no_effect(saved, num_beams, tmp_path):
    """Evaluation and translation compute the same search, with one translation per source."""
    rows = pairs(5)
    trainer = new_trainer(tmp_path, eval_dataset=rows, num_beams=num_beams)
    expected = trainer.predict(rows).predictions.tolist()
    texts = ["a b", "c", "d d a"]
    search = {"num_beams": num_beams, "length_penalty": 0.6 if num_beams > 1 else None}
    translations = translate(texts, trainer.model, trainer.processing_class, **search)
    trainer.model.generation_config.update(**saved)
    before = trainer.model.generation_config.to_dict()
    trainer.evaluate()
    strip = [[[token for token in row if token > 0] for row in table] for table in (expected, trainer.seen.predictions)]
    assert strip[0] == strip[1]
    assert trainer.model.generation_config.to_dict() == before
    assert translate(texts, trainer.model, trainer.processing_class, **search) == translations
    pipe = Seq2SeqPipeline(trainer.model, trainer.processing_class, do_sample=False, max_batch_tokens=90, **search)
    assert [answer["generated_text"] for answer in pipe(texts)] == translations


@pytest.mark.parametrize("option", [{"num_return_sequences": 2}, {"return_dict_in_generate": True}], ids=str)
def test_options_that_change_the_outputs_of_an_evaluation_raise(option, tmp_path):
    trainer = new_trainer(tmp_path, eval_dataset=pairs(3))
    [name] = option
    with pytest.raises(ValueError, match=f"{name} must be .* in evaluate and predict, got {option[name]}"):
        trainer.predict(trainer.eval_dataset, **option)


def test_means_of_several_sets_are_named_like_the_metrics_of_one(tmp_path):
    sets = {"a": pairs(3), "b": pairs(5)}
    trainer = new_trainer(tmp_path, eval_dataset=sets, predict_with_generate=False)
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] == pytest.approx((metrics["eval_a_loss"] + metrics["eval_b_loss"]) / 2)
    assert "eval_runtime" not in metrics  # times have no means
    assert trainer.state.log_history[-1]["eval_loss"] == metrics["eval_loss"]
