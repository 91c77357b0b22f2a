"""The exponential moving average of the weights: its values, evaluation, checkpoints and the final model."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import Trainer, TrainerCallback

from modeling_random_transformer.training.checkpoints import all_checkpoints
from modeling_random_transformer.training.methods.ema import EMA, read_averages
from tests.helpers.trainer import new_trainer, pairs
from tests.helpers.training import UNSCORED, run, validation


class WeightRecorder(TrainerCallback):
    """Copies of the weights before the first step and after each step."""

    def __init__(self):
        self.weights = []

    def on_train_begin(self, *_args, model, **_kwargs):
        self.weights.append({name: weight.detach().double() for name, weight in model.named_parameters()})

    on_step_end = on_train_begin


def same(left, right, rtol=0.0, atol=0.0):
    torch.testing.assert_close(left, right, rtol=rtol, atol=atol, check_dtype=False)


def parameters(model):
    return {name: weight.detach().clone() for name, weight in model.named_parameters()}


def test_the_average_has_the_decays_of_the_definition(tmp_path):
    trainer = new_trainer(tmp_path, max_steps=6, save_steps=6, ema_decay=0.4, learning_rate=0.1)
    recorder = WeightRecorder()
    trainer.add_callback(recorder)
    trainer.train()
    expected = recorder.weights[0]
    for step, weights in enumerate(recorder.weights[1:], start=1):
        decay = min(0.4, (1 + step) / (10 + step))
        expected = {name: decay * expected[name] + (1 - decay) * weight for name, weight in weights.items()}
    same(parameters(trainer.model), expected, rtol=1e-4, atol=1e-6)
    checkpoint = all_checkpoints(tmp_path)[-1]
    same(load_file(checkpoint / EMA), parameters(trainer.model))
    saved = load_file(checkpoint / "model.safetensors")  # the weights to resume from
    same(saved, {name: recorder.weights[-1][name] for name in saved})


def test_the_average_is_evaluated_during_training(tmp_path):
    rows = pairs(8)
    options = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "max_steps": 4, "learning_rate": 0.1}
    options |= {"predict_with_generate": False}
    trainer = new_trainer(tmp_path, eval_dataset=rows, ema_decay=0.9, **options)
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    for checkpoint, loss in zip(all_checkpoints(tmp_path), losses, strict=True):
        other = new_trainer(tmp_path / "other", eval_dataset=rows, predict_with_generate=False)
        other.model.load_state_dict(read_averages(other.model, checkpoint), strict=False)
        assert other.evaluate()["eval_loss"] == pytest.approx(loss, rel=1e-6)
    # Training continues with the weights.
    alone = new_trainer(tmp_path / "alone", ema_decay=0.9, **options | {"eval_strategy": "no"})
    alone.train()
    same(parameters(alone.model), parameters(trainer.model))


def test_a_run_saves_the_average_of_the_best_checkpoint(corpus, monkeypatch):
    options = UNSCORED | validation(corpus) | {
        "ema_decay": 0.9, "average_last": 1, "max_steps": 4, "eval_strategy": "steps", "eval_steps": 2, "num_beams": 1,
        "load_best_model_at_end": True, "metric_for_best_model": "loss", "greater_is_better": True,
    }  # fmt: skip
    folder = run(corpus, "out", **options).folder
    assert "| average_last" not in (folder / "README.md").read_text()
    state = json.loads((folder / "checkpoint-4" / "trainer_state.json").read_text())
    assert state["best_global_step"] == 2
    averages, final = load_file(folder / "checkpoint-2" / EMA), load_file(folder / "model.safetensors")
    same(final, {name: averages[name] for name in final})
    # If the run is stopped before it saves the model, it takes the averages from the checkpoint.
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(Trainer, "train", None)
    run(corpus, "out", **options)
    same(load_file(folder / "model.safetensors"), final)


def test_the_average_of_another_model_raises_value_error(tmp_path):
    trainer = new_trainer(tmp_path, max_steps=1, save_steps=1, ema_decay=0.9)
    trainer.train()
    with pytest.raises(ValueError, match="must have the names and shapes of the model's weights"):
        read_averages(torch.nn.Linear(2, 2), all_checkpoints(tmp_path)[-1])
