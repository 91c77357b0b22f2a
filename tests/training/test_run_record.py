"""A second call in the same output folder resumes the run, scores missing sets, or raises an error."""

import json
from dataclasses import fields
from pathlib import Path

import pytest
import transformers
from packaging import version
from transformers import AutoTokenizer, Trainer
from transformers.trainer_pt_utils import AcceleratorConfig

from modeling_random_transformer.base.distributed import exclusive
from modeling_random_transformer.base.jobs import Stage
from modeling_random_transformer.training import DataArguments, ModelArguments, TranslationTrainingArguments
from modeling_random_transformer.training import run as run_module
from modeling_random_transformer.training.run_record import (
    ARGUMENTS_COMPARED_BY_CONTENT,
    EVALUATION_ARGUMENTS,
    INCREASABLE_ARGUMENTS,
    TRAINING_LOCK,
    TRAINING_RECORD,
    UNCOMPARED_ARGUMENTS,
    UNCOMPARED_PREFIXES,
    folder_digest,
    is_uncompared,
)
from modeling_random_transformer.training.trainer import TranslationTrainer
from tests.helpers.interruption import StoppedError, stop
from tests.helpers.training import SIZES, STEPS, UNSCORED, assert_equal_weights, run, stop_run, validation

SAVE_MODEL = TranslationTrainer.save_model


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def training_stage(folder):
    return json.loads((folder / TRAINING_RECORD).read_text())["train"]


def test_a_finished_run_is_not_trained_again(copied, monkeypatch):
    def contents():
        return {path: path.read_bytes() for path in (copied / "out").rglob("*") if path.is_file()}

    monkeypatch.setattr(Trainer, "train", stop)
    monkeypatch.setattr(Trainer, "predict", stop)
    before, written = contents(), (copied / "out" / TRAINING_RECORD).stat().st_mtime_ns
    result = run(copied, "out")
    assert (result.steps, result.pairs, set(result.scores)) == (STEPS, 120, {"test"})
    assert contents() == before
    assert (copied / "out" / TRAINING_RECORD).stat().st_mtime_ns == written
    run(copied, "out", logging_steps=1)
    assert contents() == before


def test_the_digest_of_a_folder_depends_on_its_files(tmp_path):
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text("{}")
    first, second = str(tmp_path / "first"), str(tmp_path / "second")
    assert folder_digest(first) == folder_digest(second)
    (tmp_path / "second" / "config.json").write_text('{"d_model": 4}')
    assert folder_digest(first) != folder_digest(second)


def test_a_finished_run_with_the_tokenizer_of_another_model_raises(copied):
    tokenizer = AutoTokenizer.from_pretrained(copied / "out")
    type(tokenizer).train(["other text"], vocab_size=len(tokenizer)).save_pretrained(copied / "out")
    with pytest.raises(ValueError, match=r"got .*out with tokenizer\.json, which the run has not written"):
        run(copied, "out")


def test_a_run_of_an_earlier_version_has_more_facts(copied, monkeypatch):
    monkeypatch.setattr(Trainer, "predict", stop)
    expected = run(copied, "out")
    path = copied / "out" / TRAINING_RECORD
    record = json.loads(path.read_text())
    record["train"]["facts"] |= {"history": [], "free": {}}
    path.write_text(json.dumps(record))
    assert run(copied, "out") == expected


def test_only_missing_sets_are_scored(copied, monkeypatch):
    before = weights(copied / "out")
    monkeypatch.setattr(Trainer, "train", stop)
    first = run(copied, "out").scores["test"]
    scores = run(copied, "out", **validation(copied)).scores
    assert scores == {"test": first, "validation": first}  # both sets are of the same file
    assert weights(copied / "out") == before


def stop_at_the_end(self, output_dir=None, **kwargs):
    """Stops a run while it saves the final model."""
    return stop() if ".unfinished" in str(output_dir) else SAVE_MODEL(self, output_dir, **kwargs)


def test_a_run_stopped_after_its_last_step_saves_the_same_weights(copied, monkeypatch):
    before = weights(copied / "out")
    for name in ("model.safetensors", "README.md"):
        (copied / "out" / name).unlink()
    monkeypatch.setattr(Trainer, "train", stop)
    stop_run(copied, run_module, "score_set", num_beams=1)
    assert weights(copied / "out") == before  # saved before scoring
    assert "test" in run(copied, "out", num_beams=1).scores
    assert (copied / "out" / "README.md").is_file()


def test_early_stopping_is_resumed_and_keeps_the_best_checkpoint(corpus, monkeypatch):
    """Also between two evaluations without improvement, and after the last step."""
    options = UNSCORED | validation(corpus) | {
        "eval_strategy": "steps", "eval_steps": 1, "save_steps": 1, "metric_for_best_model": "loss", "num_beams": 1,
        "early_stopping_patience": 2, "learning_rate": 1e-12, "load_best_model_at_end": True, "max_steps": 60,
        "save_total_limit": 9,
    }  # fmt: skip
    step = TranslationTrainer.training_step

    def stop_at_step_two(self, *args, **kwargs):
        return stop() if self.state.global_step == 2 else step(self, *args, **kwargs)

    for name, place in (("training_step", stop_at_step_two), ("save_model", stop_at_the_end)):
        stop_run(corpus, TranslationTrainer, name, place, **options)
    monkeypatch.setattr(Trainer, "train", stop)
    result = run(corpus, "out", **options)
    assert (result.steps, set(result.scores)) == (3, {"validation"})
    state = json.loads((corpus / "out" / "checkpoint-3" / "trainer_state.json").read_text())
    losses = {entry["step"]: entry["eval_loss"] for entry in state["log_history"] if "eval_loss" in entry}
    assert losses[state["best_global_step"]] == min(losses.values())
    assert_equal_weights(result.folder, Path(state["best_model_checkpoint"]))


def test_the_best_checkpoint_is_loaded_although_a_step_between_two_was_better(corpus, monkeypatch):
    losses = {1: 5.0, 2: 4.0, 3: 1.0, 4: 2.0, 5: 2.5, 6: 3.0}
    monkeypatch.setattr(TranslationTrainer, "evaluate", lambda self, **_: {"eval_loss": losses[self.state.global_step]})
    options = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 2, "metric_for_best_model": "loss"}
    options |= {"load_best_model_at_end": True, "max_steps": 6, "save_total_limit": 9}
    result = run(corpus, "out", **UNSCORED | validation(corpus) | options)
    assert_equal_weights(result.folder, corpus / "out" / "checkpoint-4")


def test_a_run_stopped_before_its_record_is_complete_starts_again(corpus):
    stop_run(corpus, Stage, "note", max_steps=2)
    assert training_stage(corpus / "out")["facts"] == {}
    assert run(corpus, "out", max_steps=2).steps == 2


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"learning_rate": 1e-3}, "learning_rate was 0.003, now 0.001"),
        ({"target_file": "train.a"}, "training set was .*, now "),
        ({"muon": True, "average_last": 1}, "average_last was 2, now 1; .*muon was None, now True"),
        ({"accelerator_config": {"split_batches": True}}, "accelerator_config was None, now {'split_batches': True}"),
        ({"max_steps": 6}, "max_steps was 12, now 6"),
        ({"max_steps": -1}, "max_steps was 12, now None; num_train_epochs was None, now 3"),
        ({"seed": 5, "ignore_data_skip": True}, "ignore_data_skip was None, now True; seed was None, now 5"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps x devices was 1, now 2"),
    ],
)
def test_changes_of_the_result_raise(options, difference, finished):
    if "target_file" in options:
        options = {"target_file": str(finished / options["target_file"])}
    before = weights(finished / "out"), training_stage(finished / "out")
    with pytest.raises(ValueError, match=f"one with other values .*{difference}.*: use another output_dir"):
        run(finished, "out", **options)
    assert (weights(finished / "out"), training_stage(finished / "out")) == before


def test_more_steps_extend_a_run(copied):
    result = run(copied, "out", max_steps=14)
    assert result.steps == 14
    card = (copied / "out" / "README.md").read_text()
    assert "| `max_steps` | 14 |" in card
    assert "| `learning_rate` | 0.003 |" in card
    assert "| `world_size` | 1 |" in card


def test_arguments_may_change_after_a_failed_start(corpus):
    """Nothing was trained: the tokenizer of the failed start is replaced."""
    stop_run(corpus, run_module, "build_model")
    assert len(AutoTokenizer.from_pretrained(corpus / "out")) == 280
    result = run(corpus, "out", vocab_size=270, max_steps=2)
    assert len(AutoTokenizer.from_pretrained(result.folder)) == 270


def test_free_arguments_are_named_once_and_exist():
    names = [*ARGUMENTS_COMPARED_BY_CONTENT, *EVALUATION_ARGUMENTS, *INCREASABLE_ARGUMENTS, *UNCOMPARED_ARGUMENTS]
    assert len(names) == len(set(names))
    kinds = (DataArguments, ModelArguments, TranslationTrainingArguments, AcceleratorConfig)
    known = {entry.name for kind in kinds for entry in fields(kind)}
    unknown = {*names} - known | {
        start for start in UNCOMPARED_PREFIXES if not any(name.startswith(start) for name in known)
    }
    assert not unknown or version.parse(transformers.__version__) < version.parse("5.23")
    # The second half begins with names that may change, as a field that an edit adds.
    determining = ("seed", "learning_rate", "average_tokens_across_devices", "project_penalty", "use_cached_loss")
    assert not any(map(is_uncompared, determining))


def test_checkpoints_without_an_optimizer_are_not_resumed(corpus):
    options = {**UNSCORED, "save_only_model": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_module, "load_final_weights", stop)
        with pytest.raises(StoppedError):
            run(corpus, "out", **options)
    assert run(corpus, "out", **options).steps == STEPS  # only the model was missing
    message = r"got .*checkpoint-12 without the state of the optimizer \(save_only_model\): .*model_name_or_path"
    with pytest.raises(ValueError, match=message):
        run(corpus, "out", **options, max_steps=16)


def test_a_folder_in_use_raises(finished):
    message = r"output_dir must not be in use, got .* with another run in progress"
    with exclusive(finished / "out" / TRAINING_LOCK, "free"), pytest.raises(ValueError, match=message):
        run(finished, "out")


def test_an_output_folder_of_one_node_raises(corpus, monkeypatch):
    """The first process has written the record into a folder of its node."""
    monkeypatch.setattr(run_module, "begin_training", lambda _: None)
    monkeypatch.setattr(run_module, "TRAINING_RECORD", "missing.json")
    with pytest.raises(ValueError, match=r"output_dir must be on a file system that all nodes share, got"):
        run(corpus, "out")


def test_positions_for_scored_sets_are_checked_before_training(corpus):
    (corpus / "test.a").write_text("abcdefgh " * 20 + "\n" + "ab\n" * 11)
    with pytest.raises(ValueError, match=r"max_position_embeddings must be at least \d+, .* the test set, got 16"):
        run(corpus, "out", config_overrides=f"{SIZES},position_embedding=learned")
    assert not [*(corpus / "out").glob("checkpoint-*")]
