"""The files of an output folder: what a run has not written is neither removed nor overwritten."""

import json
import shutil

import pytest
from transformers import Trainer

from modeling_random_transformer.training import run as run_module
from modeling_random_transformer.training.checkpoints import (
    COMPLETE_MARKER,
    UNFINISHED_MARKER,
    all_checkpoints,
    begin_checkpoint,
    check_checkpoints,
    is_complete,
    keep_newest,
    mark_complete,
    remove_checkpoint,
    save_atomically,
)
from modeling_random_transformer.training.run_record import TRAINING_RECORD
from tests.helpers.interruption import killed_after, stop
from tests.helpers.trainer import new_trainer, pairs
from tests.helpers.training import STEPS, run, stop_run


def files(folder):
    """The contents of all files that a run must not change."""
    paths = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {
        path: path.read_bytes() for path in paths if not path.name.endswith(".lock") and path.name != TRAINING_RECORD
    }


def assert_unchanged(folder, message, **options):
    before = files(folder / "out")
    with pytest.raises(ValueError, match=message):
        run(folder, "out", **options)
    assert files(folder / "out") == before


def checkpoint(folder, step, run_id="run"):
    path = folder / f"checkpoint-{step}"
    begin_checkpoint(path, run_id)
    for name in ("model.safetensors", "optimizer.pt", "state/rank_0.pt"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"0123")
    return path


def change_the_run(folder):
    copied = shutil.copytree(folder / f"checkpoint-{STEPS}", folder / "checkpoint-14")
    marker = json.loads((copied / COMPLETE_MARKER).read_text())
    (copied / COMPLETE_MARKER).write_text(json.dumps(marker | {"run": "another"}))


def remove_the_optimizers(folder):
    for path in folder.glob("checkpoint-*/optimizer.pt"):
        path.unlink()
    (folder / f"checkpoint-{STEPS}" / "notes.txt").write_text("mine")


def remove_the_checkpoints(folder):
    for path in all_checkpoints(folder):
        shutil.rmtree(path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (change_the_run, "only checkpoints of this run, got .*checkpoint-14"),
        (remove_the_optimizers, r"got .*checkpoint-10, in which optimizer.pt is missing or was changed"),
        (remove_the_checkpoints, "must contain a checkpoint to extend a finished run, got .*model_name_or_path"),
    ],
)
def test_a_finished_run_with_changed_checkpoints_is_not_extended(change, message, copied):
    change(copied / "out")
    assert_unchanged(copied, message, max_steps=16)
    assert run(copied, "out").steps == STEPS  # nothing to train


@pytest.mark.parametrize("name", ["adapter_model.safetensors", "tokenizer.json", "checkpoint-500/optimizer.pt"])
def test_a_model_or_a_checkpoint_of_another_program_is_an_error(name, corpus):
    (corpus / "train.a").write_bytes(b"\xff")  # another error, if it was read
    path = corpus / "out" / name
    path.parent.mkdir(parents=True)
    path.write_bytes(b"mine")
    first = name.partition("/")[0]
    assert_unchanged(corpus, f"output_dir must be new or contain an earlier attempt .*{first}, which the run has not")


def test_a_model_that_was_changed_after_the_run_is_an_error(copied):
    (copied / "out" / "model.safetensors").write_bytes(b"mine")
    assert_unchanged(copied, "with model.safetensors, which the run has not written", max_steps=14)


def test_a_model_beside_a_run_that_has_not_begun_is_an_error(corpus):
    stop_run(corpus, run_module, "build_model")
    (corpus / "out" / "model.safetensors").write_bytes(b"mine")
    assert_unchanged(corpus, "with model.safetensors, which the run has not written")


@pytest.mark.parametrize("work", [mark_complete, remove_checkpoint])
def test_an_interrupted_save_or_removal_leaves_no_part_that_looks_complete(work, tmp_path):
    steps, is_killed = 0, True
    while is_killed:
        path = checkpoint(tmp_path / str(steps), 2)
        if work is remove_checkpoint:
            mark_complete(path)
        is_killed = killed_after(steps, lambda path=path: work(path), path.parent)
        check_checkpoints(path.parent, "run")  # raises an error for a complete one with missing files
        steps += 1
    assert is_complete(path) == (work is mark_complete)
    assert path.exists() == (work is mark_complete)
    assert steps > 2


def test_a_failed_save_leaves_no_file(tmp_path):
    message = r"files could not be saved in .* \(.*is a directory.*; .* MiB free\)"
    with pytest.raises(OSError, match=f"(?i){message}"), save_atomically(tmp_path) as temporary:
        temporary.mkdir() or temporary.write_bytes(b"")
    assert not list(tmp_path.iterdir())


def test_a_full_disk_while_the_tokenizer_is_saved(tmp_path):
    message = r"files could not be saved in .* \(.*No space left on device.*; .* MiB free\)"
    with pytest.raises(OSError, match=message), save_atomically(tmp_path):
        raise Exception("No space left on device (os error 28)")  # the class of all errors of tokenizers


def test_only_checkpoints_without_other_files_are_removed(tmp_path):
    for step in range(1, 6):
        mark_complete(checkpoint(tmp_path, step))
    (tmp_path / "checkpoint-2" / "notes.txt").write_text("mine")
    keep_newest(tmp_path, 2, best=str(tmp_path / "checkpoint-1"))
    assert [path.name for path in all_checkpoints(tmp_path)] == [f"checkpoint-{step}" for step in (1, 2, 4, 5)]
    assert (tmp_path / "checkpoint-2" / "notes.txt").read_text() == "mine"


def test_a_checkpoint_whose_writer_was_killed_at_its_start_is_replaced(tmp_path):
    (tmp_path / "checkpoint-2").mkdir()
    (tmp_path / "checkpoint-2" / UNFINISHED_MARKER).touch()
    new_trainer(tmp_path, save_steps=2).train()
    assert is_complete(tmp_path / "checkpoint-2")


def test_a_trainer_replaces_its_own_checkpoints_only(tmp_path):
    options = {"save_steps": 2}
    new_trainer(tmp_path, **options).train()
    new_trainer(tmp_path, **options).train()
    assert is_complete(tmp_path / "checkpoint-2")
    (tmp_path / "checkpoint-2" / COMPLETE_MARKER).unlink()
    before = files(tmp_path)
    for resume in (None, True):
        with pytest.raises(ValueError, match=r"only checkpoints of this run, got .*checkpoint-2"):
            new_trainer(tmp_path, **options).train(resume_from_checkpoint=resume)
    assert files(tmp_path) == before


def test_a_process_that_does_not_save_removes_nothing(tmp_path, monkeypatch):
    trainer = new_trainer(tmp_path, save_steps=2)
    trainer.train()
    monkeypatch.setattr(type(trainer.args), "should_save", False)
    monkeypatch.setattr(Trainer, "_save_checkpoint", stop)
    with pytest.raises(OSError, match="could not be saved"):
        trainer._save_checkpoint(trainer.model, None)
    assert is_complete(tmp_path / "checkpoint-2")


def test_intervals_of_a_resumed_run_are_those_of_its_arguments(tmp_path):
    """transformers restores those of the earlier run from the checkpoint."""
    options = {"eval_dataset": pairs(4), "eval_strategy": "steps", "predict_with_generate": False}
    new_trainer(tmp_path, **options, save_steps=4, eval_steps=4, logging_steps=4, max_steps=4).train()
    resumed = new_trainer(tmp_path, **options, save_steps=3, eval_steps=2, logging_steps=1, max_steps=10)
    resumed.train(resume_from_checkpoint=True)
    assert [path.name for path in all_checkpoints(tmp_path)] == [f"checkpoint-{n}" for n in (4, 6, 9, 10)]
    history = resumed.state.log_history
    assert [entry["step"] for entry in history if "eval_loss" in entry] == [4, 6, 8, 10]
    assert [entry["step"] for entry in history if "loss" in entry] == [4, 5, 6, 7, 8, 9, 10]
