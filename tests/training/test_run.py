"""A complete run, from text files to a scored model, and its resumption after being killed."""

import shutil

import pytest
import torch
import transformers.trainer
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.inference import calibration, load_translator
from modeling_random_transformer.inference.confidence import CALIBRATION, find_calibration
from modeling_random_transformer.training import run as training_run
from modeling_random_transformer.training.checkpoints import (
    COMPLETE_MARKER,
    UNFINISHED_MARKER,
    all_checkpoints,
    state_of,
)
from tests.helpers.training import STEPS, UNSCORED, assert_equal_weights, run, validation, write_corpora


def test_a_run_writes_a_scored_model(trained):
    _, result = trained
    assert (result.steps, result.pairs, set(result.scores)) == (STEPS, 120, {"test"})
    card = (result.folder / "README.md").read_text()
    assert "120 lines, none invalid" in card
    assert f"random-transformer translate --model {result.folder.name} " in card
    assert result.scores["test"]["bleu"]["signature"].replace("|", "\\|") in card
    model, tokenizer = (kind.from_pretrained(result.folder) for kind in (AutoModelForSeq2SeqLM, AutoTokenizer))
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (4, 0.6)
    assert model.config.decoder_start_token_id == tokenizer.bos_token_id
    assert tokenizer.model_max_length == 16  # the positions of the model
    assert tokenizer.decode(model.generate(**tokenizer("abc", return_tensors="pt"))[0]).startswith("<s>")
    # The saved model is the mean of the last two checkpoints.
    kept = all_checkpoints(result.folder)
    assert [path.name for path in kept] == ["checkpoint-10", "checkpoint-12"]
    first, last = (load_file(path / "model.safetensors") for path in kept)
    for name, weight in load_file(result.folder / "model.safetensors").items():
        torch.testing.assert_close(weight, ((first[name].double() + last[name]) / 2).float(), rtol=0, atol=0)
    (events,) = (result.folder / "runs").rglob("events.out.tfevents.*")
    assert b"train/loss" in events.read_bytes()


@pytest.mark.parametrize("option", [{"predict_with_generate": False}, {"prediction_loss_only": True}])
def test_evaluation_without_translations_and_a_scored_model(option, corpus, monkeypatch):
    options = validation(corpus) | {"max_steps": 2, "learning_rate": None, **option}  # the paper's learning rate
    result = run(corpus, "loss", eval_strategy="steps", eval_steps=2, **options)
    [entry] = [row for row in state_of(all_checkpoints(result.folder)[-1]).log_history if "eval_loss" in row]
    assert "eval_bleu" not in entry
    assert {"bleu", "chrf"} <= result.scores["validation"].keys()
    # A call that scores the model only does not change the hardware that it was trained on.
    monkeypatch.setattr(training_run, "hardware", lambda _: "another device")
    again = run(corpus, "loss", eval_strategy="steps", eval_steps=2, **options | {"num_beams": 2})
    assert again.hardware == result.hardware
    assert result.hardware in (again.folder / "README.md").read_text()
    assert AutoModelForSeq2SeqLM.from_pretrained(again.folder).generation_config.num_beams == 2  # as in the card


def test_a_validation_set_calibrates_the_model_unless_it_is_tiny(corpus, monkeypatch, caplog):
    options = validation(corpus) | {"max_steps": 2}
    assert not (run(corpus, "tiny", **options).folder / CALIBRATION).exists()
    monkeypatch.setattr(calibration, "MIN_PAIRS", 2)
    assert not (run(corpus, "equal", **options).folder / CALIBRATION).exists()
    assert any("The model has no confidence: translations must be 10 or more" in line for line in caplog.messages)
    monkeypatch.setattr(calibration, "MIN_BELOW", 0)
    result = run(corpus, "calibrated", **options)
    model, tokenizer = load_translator(result.folder)
    calibration_of_run = find_calibration(model, tokenizer)
    assert calibration_of_run.pairs >= 2
    assert 0 <= calibration_of_run.confidence([0.0] * 6) <= 1


def test_a_tiny_validation_set_does_not_load_the_model(corpus, trained, monkeypatch, caplog):
    monkeypatch.setattr(training_run, "load_translator", None)
    options = {"model_name_or_path": str(trained[1].folder), "lora_rank": 2, "vocab_size": None}
    run(corpus, "tiny", **validation(corpus), **options, config_overrides="", max_steps=2)
    assert any("The model has no confidence: pairs must be at least 100" in line for line in caplog.messages)


@pytest.mark.parametrize("options", [{"lora_rank": 2}, {"bf16_full_eval": True}])
def test_the_calibration_is_of_the_saved_model(options, corpus, trained, monkeypatch):
    monkeypatch.setattr(calibration, "MIN_PAIRS", 2)
    monkeypatch.setattr(calibration, "MIN_BELOW", 0)
    loaded = []
    monkeypatch.setattr(
        training_run, "load_translator", lambda folder: loaded.append(folder) or load_translator(folder)
    )
    folder = trained[1].folder
    options |= {"model_name_or_path": str(folder), "vocab_size": None, "config_overrides": "", "max_steps": 2}
    result = run(corpus, "calibrated", **validation(corpus), **options)
    assert loaded == [result.folder]
    assert (result.folder / CALIBRATION).exists()


def test_several_validation_sets_of_one_direction_do_not_calibrate_the_model(corpus, monkeypatch):
    """Each would replace the calibration of the one before."""
    monkeypatch.setattr(calibration, "MIN_PAIRS", 2)
    sets = {name: [path, path] for name, path in validation(corpus).items()}
    assert not (run(corpus, "several", **sets, max_steps=2).folder / CALIBRATION).exists()


def test_an_incomplete_checkpoint_is_not_resumed(copied, caplog):
    (copied / "out" / "model.safetensors").unlink()  # saved after the last step
    for path in all_checkpoints(copied / "out"):
        (path / COMPLETE_MARKER).rename(path / UNFINISHED_MARKER)  # it is renamed last
        (path / "optimizer.pt").write_bytes(b"half")
    assert run(copied, "out", max_steps=4).steps == 4
    for step in (10, 12):
        assert f"{copied / 'out' / f'checkpoint-{step}'} was incomplete and has been removed." in caplog.messages
    assert [path.name for path in all_checkpoints(copied / "out")] == ["checkpoint-2", "checkpoint-4"]


def test_a_full_disk_keeps_the_previous_checkpoint(corpus, monkeypatch):
    save, calls = torch.save, []

    def full_at_the_second(*args, **kwargs):
        calls.append(args)
        if len(calls) > 4:
            raise OSError(28, "No space left on device")
        return save(*args, **kwargs)

    monkeypatch.setattr(torch, "save", full_at_the_second)
    with pytest.raises(OSError, match=r"could not be saved, .* is .*checkpoint-2 \(.*No space left"):
        run(corpus, "out")
    assert [path.name for path in all_checkpoints(corpus / "out")] == ["checkpoint-2"]


REGULARIZATIONS = {
    "regularized": {"bpe_dropout": 0.3, "r_drop_alpha": 5.0},
    "weighted": {"train_weights": [1, 2], "dataloader_num_workers": 2},
    "augmented": {"augment": True, "bpe_dropout": 0.3, "dataloader_num_workers": 2},
    "streaming": {"augment": True, "bpe_dropout": 0.3, "train_weights": [1, 2], "streaming": True, "buffer_pairs": 50},
}


@pytest.mark.slow
@pytest.mark.parametrize("regularization", REGULARIZATIONS)
def test_a_run_resumed_within_an_epoch_trains_on_the_remaining_batches(regularization, tmp_path, monkeypatch):
    """An epoch has nine batches: step 4 is within the first one, step 12 within the second one."""
    warnings = []
    monkeypatch.setattr(transformers.trainer.logger, "warning", lambda message, *_: warnings.append(message))
    options = {"average_last": 1, "save_total_limit": 9, **UNSCORED}
    options |= write_corpora(tmp_path) | REGULARIZATIONS[regularization]
    whole = run(tmp_path, "whole", **options).folder
    part = shutil.copytree(whole, tmp_path / "part")
    for path in all_checkpoints(part):
        if state_of(path).global_step > 4:
            shutil.rmtree(path)
    (part / "model.safetensors").unlink()  # saved after the last step
    result = run(tmp_path, "part", **options)
    assert (result.steps, result.pairs) == (STEPS, 120)
    assert_equal_weights(part, whole)
    assert not [message for message in warnings if "missing keys" in message]  # such as those of tied weights
