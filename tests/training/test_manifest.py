"""A second call in the same output folder resumes the run, scores missing sets, or raises an error."""

import importlib
import importlib.metadata
import json
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, fields

import pytest
import torch
import transformers
from packaging import version
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, Trainer, pipeline
from transformers.trainer_pt_utils import AcceleratorConfig

from modeling_random_transformer import __version__, cli
from modeling_random_transformer.jobs import Job, StageRecord
from modeling_random_transformer.training import (
    DataArguments,
    ModelArguments,
    RunResult,
    TranslationTrainingArguments,
)
from modeling_random_transformer.training import checkpoints as checkpoints_module
from modeling_random_transformer.training import preparation as preparation_module
from modeling_random_transformer.training import run as run_module
from modeling_random_transformer.training.checkpoints import all_checkpoints
from modeling_random_transformer.training.manifest import (
    FREE,
    LOCK,
    MANIFEST,
    OTHER_FORM,
    RECORDED,
    Run,
    check_shared,
    locked,
)
from modeling_random_transformer.training.model_init import check_arguments
from modeling_random_transformer.training.trainer import TranslationTrainer
from tests.helpers.interruption import StoppedError, stop
from tests.helpers.training import STEPS, run, write_corpus

SIZES = "d_model=16,d_ff=32,encoder_layers=1,decoder_layers=1,max_position_embeddings=16"
VALIDATION = ("validation_source_file", "test.a"), ("validation_target_file", "test.b")


@dataclass
class MoreData(DataArguments):
    new_filter: str | None = None


@dataclass
class MoreModel(ModelArguments):
    new_layer: int = 1


@dataclass
class MoreTraining(TranslationTrainingArguments):
    new_rate: float = 0.5


def corpus_files(folder):
    write_corpus(folder)
    return folder / "train.a", folder / "train.b"


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def manifest(folder):
    return json.loads((folder / MANIFEST).read_text())["train"]


def test_a_finished_run_is_not_trained_again(copied, monkeypatch):
    before = {path: path.read_bytes() for path in sorted((copied / "out").rglob("*")) if path.is_file()}
    monkeypatch.setattr(Trainer, "train", stop)
    monkeypatch.setattr(Trainer, "predict", stop)
    result = run(copied, "out", logging_steps=1)
    assert (result.steps, result.pairs, set(result.scores)) == (STEPS, 120, {"test"})
    after = {path: path.read_bytes() for path in sorted((copied / "out").rglob("*")) if path.is_file()}
    changed = {path.name for path in {*before, *after} if before.get(path) != after.get(path)}
    assert changed <= {MANIFEST, LOCK}
    assert manifest(copied / "out")["facts"]["history"] == [{"step": STEPS, "changes": {"logging_steps": [4, 1]}}]


def test_only_missing_sets_are_scored(copied, monkeypatch):
    before = weights(copied / "out")
    monkeypatch.setattr(Trainer, "train", stop)
    first = run(copied, "out").scores["test"]
    scores = run(copied, "out", **{name: str(copied / file) for name, file in VALIDATION}).scores
    assert scores == {"test": first, "validation": first}  # both sets are of the same file
    assert weights(copied / "out") == before


@pytest.mark.parametrize(("stopped_in", "early"), [("save", False), ("score", False), ("card", False), ("save", True)])
def test_a_run_stopped_after_its_last_step_saves_the_same_weights(stopped_in, early, finished, tmp_path, monkeypatch):
    write_corpus(tmp_path)
    options = {}
    if early:
        options = {name: str(tmp_path / file) for name, file in VALIDATION} | {
            "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss", "early_stopping_patience": 2,
            "learning_rate": 1e-12, "load_best_model_at_end": True, "max_steps": 60, "num_beams": 1,
        }  # fmt: skip
    place = {"save": (TranslationTrainer, "save_model"), "score": (run_module, "_score")}
    save_model = TranslationTrainer.save_model

    def stop_at_the_end(self, output_dir=None, **kwargs):
        return stop() if ".unfinished" in str(output_dir) else save_model(self, output_dir, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(
            *place.get(stopped_in, (run_module, "write_model_card")), stop_at_the_end if stopped_in == "save" else stop
        )
        with pytest.raises(StoppedError):
            run(tmp_path, "out", **options)
    assert (tmp_path / "out" / "model.safetensors").exists() == (stopped_in != "save")  # saved before scoring
    saved = all_checkpoints(tmp_path / "out")
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "train", stop)
        result = run(tmp_path, "out", **options)
    assert "test" in result.scores
    assert all_checkpoints(tmp_path / "out") == saved
    if early:
        assert result.steps < 60
        state = json.loads((saved[-1] / "trainer_state.json").read_text())
        best = load_file(state["best_model_checkpoint"] + "/model.safetensors")
        for name, weight in load_file(tmp_path / "out" / "model.safetensors").items():
            assert torch.equal(best[name], weight), name
    else:
        assert weights(tmp_path / "out") == weights(finished / "out")


def test_early_stopping_patience_is_resumed(tmp_path, monkeypatch):
    """A run stopped between two evaluations without improvement ends at the same step."""
    write_corpus(tmp_path)
    options = {name: str(tmp_path / file) for name, file in VALIDATION} | {
        "eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "loss", "early_stopping_patience": 3,
        "learning_rate": 1e-12, "max_steps": 60, "num_beams": 1, "average_last": 1, "save_total_limit": 9,
    }  # fmt: skip
    steps = run(tmp_path, "whole", **options).steps
    step = TranslationTrainer.training_step

    def stop_at_step_five(self, *args, **kwargs):
        return stop() if self.state.global_step == 5 else step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(TranslationTrainer, "training_step", stop_at_step_five)
        with pytest.raises(StoppedError):
            run(tmp_path, "parts", **options)
    assert run(tmp_path, "parts", **options).steps == steps


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"learning_rate": 1e-3}, "learning_rate was 0.003, now 0.001"),
        ({"warmup_steps": 5, "seed": 1}, r"seed was None, now 1; warmup_steps was 4(\.0)?, now 5"),
        ({"vocab_size": 300}, "vocab_size was 280, now 300"),
        ({"config_overrides": SIZES.replace("d_ff=32", "d_ff=64")}, "config_overrides was .*d_ff=32.*, now .*d_ff=64"),
        ({"target_file": "train.a"}, "training set was .*, now "),
        ({"bpe_dropout": 0.1}, "bpe_dropout was None, now 0.1"),
        ({"ema_decay": 0.9, "average_last": 1}, "average_last was 2, now 1; ema_decay was None, now 0.9"),
        ({"r_drop_alpha": 5.0, "word_dropout": 0.1}, "r_drop_alpha was None, now 5.0; word_dropout was None, now 0.1"),
        ({"ignore_data_skip": True}, "ignore_data_skip was None, now True"),
        ({"average_tokens_across_devices": False}, "average_tokens_across_devices was None, now False"),
        ({"accelerator_config": {"split_batches": True}}, "accelerator_config was None, now {'split_batches': True}"),
        ({"max_length_ratio": 3.0}, "max_length_ratio was None, now 3.0"),
        ({"streaming": True}, "streaming was None, now True"),
        ({"max_steps": 6}, "max_steps was 12, now 6"),
        ({"max_steps": -1}, "max_steps was 12, now None; num_train_epochs was None, now 3"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps x devices was 1, now 2"),
    ],
)
def test_changes_of_the_result_raise(options, difference, finished):
    if "target_file" in options:
        options = {"target_file": str(finished / options["target_file"])}
    before = weights(finished / "out"), manifest(finished / "out")
    with pytest.raises(ValueError, match=f"one with other values .*{difference}.*: use another output_dir"):
        run(finished, "out", **options)
    assert (weights(finished / "out"), manifest(finished / "out")) == before


def test_more_steps_extend_a_run_and_are_recorded(copied):
    result = run(copied, "out", max_steps=14)
    assert result.steps == 14
    assert manifest(copied / "out")["facts"]["history"] == [{"step": STEPS, "changes": {"max_steps": [STEPS, 14]}}]
    card = (copied / "out" / "README.md").read_text()
    assert "from step 12: `max_steps` 14 (was 12)" in card
    assert "| `learning_rate` | 0.003 |" in card
    assert "| `world_size` | 1 |" in card


def test_arguments_may_change_after_a_failed_start(tmp_path, monkeypatch):
    """Nothing was trained: the tokenizer of the failed start is replaced."""
    write_corpus(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "build_model", stop)
        with pytest.raises(StoppedError):
            run(tmp_path, "out")
    assert len(AutoTokenizer.from_pretrained(tmp_path / "out")) == 280
    result = run(tmp_path, "out", vocab_size=270, max_steps=2)
    assert len(AutoTokenizer.from_pretrained(result.folder)) == 270


def test_a_damaged_manifest_raises(copied):
    (copied / "out" / MANIFEST).write_text("{")
    with pytest.raises(ValueError, match=f"{MANIFEST} must be the record of a job, got .*: the record is damaged"):
        run(copied, "out")


def test_a_new_argument_is_recorded_and_compared(tmp_path):
    """What no list names determines the result."""
    write_corpus(tmp_path)

    kinds = (MoreData, MoreModel, MoreTraining)
    run(tmp_path, "out", kinds, max_steps=2, new_rate=0.25)
    fixed = manifest(tmp_path / "out")["inputs"]
    assert (fixed["new_rate"], "new_layer" in fixed) == (0.25, False)
    for change in ({"new_rate": 0.75}, {"new_layer": 2}, {"new_filter": "all"}):
        [(name, value)] = change.items()
        with pytest.raises(ValueError, match=f"other values .*{name} was .*, now {value}"):
            run(tmp_path, "out", kinds, max_steps=2, **{"new_rate": 0.25, **change})


def test_free_arguments_are_named_once_and_exist():
    groups = [*FREE.values(), OTHER_FORM, RECORDED]
    names = [name for group in groups for name in group]
    assert len(names) == len(set(names))
    kinds = (DataArguments, ModelArguments, TranslationTrainingArguments, AcceleratorConfig)
    known = {entry.name for kind in kinds for entry in fields(kind)}
    assert {*names} <= known or version.parse(transformers.__version__) < version.parse("5.23")
    assert not {*names} & {"seed", "learning_rate", "ignore_data_skip", "average_tokens_across_devices"}


@pytest.mark.parametrize("name", [MANIFEST, "README.md"])
def test_no_secret_is_recorded(name, finished):
    text = (finished / "out" / name).read_text()
    assert "hf_secret" not in text
    assert "me/private" not in text


def test_resume_from_checkpoint_of_another_run(finished, copied):
    start = str(finished / "out" / "checkpoint-10")
    result = run(copied, "new", resume_from_checkpoint=start)
    assert result.steps == STEPS
    assert [path.name for path in all_checkpoints(copied / "new")] == ["checkpoint-12"]
    last = load_file(finished / "out" / "checkpoint-12" / "model.safetensors")
    for name, weight in load_file(copied / "new" / "model.safetensors").items():
        assert torch.equal(last[name], weight), name


@pytest.mark.parametrize(
    ("checkpoint", "message"),
    [
        ("nowhere", "must be the folder of a complete checkpoint, got '.*nowhere' without trainer_state.json"),
        ("out/checkpoint-10", "must be the newest checkpoint of output_dir, checkpoint-12, or one of another run"),
    ],
)
def test_an_invalid_resume_from_checkpoint_raises(checkpoint, message, finished):
    with pytest.raises(ValueError, match=f"resume_from_checkpoint {message}"):
        run(finished, "out", resume_from_checkpoint=str(finished / checkpoint))


def test_a_deepspeed_checkpoint_is_accepted(finished, tmp_path):
    """DeepSpeed writes a folder with optimizer and scheduler, and its name into the file `latest`."""
    checkpoint = shutil.copytree(finished / "out" / "checkpoint-10", tmp_path / "checkpoint-10")
    for name in ("optimizer.pt", "scheduler.pt", "complete.json"):
        (checkpoint / name).unlink()
    (checkpoint / "latest").write_text("global_step10")
    args = TranslationTrainingArguments(
        output_dir=str(tmp_path / "new"), resume_from_checkpoint=str(checkpoint), use_cpu=True
    )
    with pytest.raises(ValueError, match=r"must be the folder of a complete checkpoint, .* without global_step10"):
        check_arguments(ModelArguments(), args)
    (checkpoint / "global_step10").mkdir()
    check_arguments(ModelArguments(), args)


def test_a_folder_in_use_raises(finished):
    with (
        locked(finished / "out"),
        pytest.raises(ValueError, match=r"output_dir must not be in use, got .* with another run in progress"),
    ):
        run(finished, "out")


def test_a_killed_process_releases_the_lock(tmp_path):
    code = "import filelock, sys; lock = filelock.FileLock(sys.argv[1]); lock.acquire(); print(1, flush=True); input()"
    command = [sys.executable, "-c", code, str(tmp_path / LOCK)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "1\n"
        with pytest.raises(ValueError, match="must not be in use"), locked(tmp_path):
            pass
        process.send_signal(signal.SIGKILL)
        process.wait()
    with locked(tmp_path):
        pass


def test_an_output_folder_of_one_node_raises(tmp_path):
    """The first process has written the manifest into a folder of its node."""
    with pytest.raises(ValueError, match=r"output_dir must be on a file system that all nodes share, got .* without"):
        check_shared(tmp_path)


def test_a_full_disk_at_the_final_save_is_reported_in_one_line(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    save_model = TranslationTrainer.save_model

    def full(self, output_dir=None, **kwargs):
        if ".unfinished" in str(output_dir):
            raise checkpoints_module.SafetensorError("Error while serializing: I/O error: No space left on device")
        return save_model(self, output_dir, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(TranslationTrainer, "save_model", full)
        with pytest.raises(
            OSError, match=r"files could not be saved in .*out \(.*No space left.* MiB free\)"
        ) as caught:
            run(tmp_path, "out", max_steps=4)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out" / ".unfinished").exists()
    assert run(tmp_path, "out", max_steps=4).steps == 4


def test_positions_for_scored_sets_are_checked_before_training(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    (tmp_path / "test.a").write_text("abcdefgh " * 20 + "\n" + "ab\n" * 11)
    monkeypatch.setattr(Trainer, "train", stop)
    with pytest.raises(ValueError, match=r"max_position_embeddings must be at least \d+, .* the test set, got 16"):
        run(tmp_path, "out", config_overrides=f"{SIZES},position_embedding=learned")


@pytest.mark.parametrize("options", [{"preset": "huge"}, {"config_overrides": "num_heads=0"}])
def test_an_invalid_architecture_raises_before_the_corpus_is_read(options, tmp_path, monkeypatch):
    write_corpus(tmp_path)
    monkeypatch.setattr(preparation_module, "load_pairs", stop)
    with pytest.raises(ValueError, match=r"preset|num_heads"):
        run(tmp_path, "out", **options)
    assert not (tmp_path / "out").exists()


def test_the_model_card_works_without_an_installed_package(tmp_path, monkeypatch):
    def not_installed(name):
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "version", not_installed)
    card = importlib.reload(importlib.import_module("modeling_random_transformer.training.model_card"))
    facts = {"seconds": 60.0, "steps": 2, "parameters": 3, "trained": 3, "pairs": 4}
    result = RunResult(folder=tmp_path, **facts, learning_rate=0.5, world_size=2)
    args = TranslationTrainingArguments(output_dir=str(tmp_path), use_cpu=True, bpe_dropout=0.1)
    data = DataArguments(source_file=__file__, target_file=__file__)
    run = Run(data, ModelArguments(), args, {}, Job(tmp_path / "x"))
    run.job.stages["train"] = StageRecord(facts={"history": []})
    card.write_model_card(tmp_path / "README.md", result, run)
    text = (tmp_path / "README.md").read_text()
    assert f"with random-transformer {__version__}" in text
    assert "| `learning_rate` | 0.5 |" in text
    assert "| `world_size` | 2 |" in text
    assert "| `bpe_dropout` | 0.1 |" in text
    assert "r_drop_alpha" not in text
    assert f"random-transformer translate --model {tmp_path.name} " in text
    assert "`--dtype int8` quantizes" in text


def test_the_command_in_the_model_card_repeats_the_run(finished, copied, monkeypatch):
    """It has no absolute paths, so that it can be published, and runs in a folder with the files."""
    card = (copied / "out" / "README.md").read_text()
    assert str(finished) not in card
    text = card.split("## Training\n\n```sh\n")[1].split("```")[0]
    program, verb, *flags = shlex.split(text.replace("\\\n", " "))
    assert (program, verb) == ("random-transformer", "train")
    before = weights(copied / "out")
    shutil.rmtree(copied / "out")
    monkeypatch.chdir(copied)
    assert cli.main([verb, *flags, "--use_cpu"]) == 0
    assert weights(copied / "out") == before


def test_the_report_of_a_stream_survives_a_stop_before_saving(tmp_path, monkeypatch):
    """A process that trains no step reads the number of pairs from the newest checkpoint."""
    write_corpus(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "_save_model", stop)
        with pytest.raises(StoppedError):
            run(tmp_path, "out", streaming=True)
    monkeypatch.setattr(Trainer, "train", stop)
    result = run(tmp_path, "out", streaming=True)
    assert result.pairs == 120
    assert "trained from scratch on 120 pairs" in (result.folder / "README.md").read_text()


def test_the_saved_tokenizer_limits_the_source_length(finished):
    """A text of a megabyte is an error instead of an attention matrix that exceeds the memory."""
    tokenizer = AutoTokenizer.from_pretrained(finished / "out")
    assert tokenizer.model_max_length == 16
    model = AutoModelForSeq2SeqLM.from_pretrained(finished / "out")
    with pytest.raises(ValueError, match="must have at most 16 tokens"):
        pipeline("seq2seq", model=model, tokenizer=tokenizer)("ab " * 300_000)
