"""A complete run, from text files to a scored model, and its resumption after being killed."""

import json
import random
import shutil
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
import torch
import transformers.trainer
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.training import average_weights, is_complete
from modeling_random_transformer.training import run as run_module
from modeling_random_transformer.training.checkpoints import (
    MARKER,
    UNFINISHED,
    all_checkpoints,
    newest_complete,
    step_of,
)
from tests.helpers.processes import start_imported
from tests.helpers.training import STEPS, arguments, run, write_corpus

SIDES = (("source", "a"), ("target", "b"))
SCRIPT = Path(__file__).parents[2] / "examples" / "train_translation.py"


def interrupt(*_):
    raise KeyboardInterrupt


def test_a_run_writes_a_scored_model(trained):
    _, result = trained
    assert result.steps == STEPS
    assert set(result.scores) == {"test"}
    card = (result.folder / "README.md").read_text()
    assert "120 lines, none invalid" in card
    assert result.scores["test"]["bleu"]["signature"].replace("|", "\\|") in card
    model, tokenizer = (kind.from_pretrained(result.folder) for kind in (AutoModelForSeq2SeqLM, AutoTokenizer))
    assert (model.generation_config.num_beams, model.generation_config.length_penalty) == (4, 0.6)
    assert model.config.decoder_start_token_id == tokenizer.bos_token_id
    assert tokenizer.decode(model.generate(**tokenizer("abc", return_tensors="pt"))[0]).startswith("<s>")
    # The saved model is the mean of the last two checkpoints.
    kept = all_checkpoints(result.folder)
    assert [path.name for path in kept] == ["checkpoint-10", "checkpoint-12"]
    mean = average_weights(kept)
    for name, weight in load_file(result.folder / "model.safetensors").items():
        torch.testing.assert_close(weight, mean[name], rtol=0, atol=0)
    first, last = (load_file(path / "model.safetensors") for path in kept)
    for name, weight in mean.items():
        torch.testing.assert_close(weight, (first[name] + last[name]) / 2)
    (events,) = (result.folder / "runs").rglob("events.out.tfevents.*")
    assert b"train/loss" in events.read_bytes()


def test_averaging_no_checkpoints_raises():
    with pytest.raises(ValueError, match="at least one folder"):
        average_weights([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"vocab_size": 100}, "vocab_size must be an integer of at least 260 .*, got 100"),
        ({"vocab_size": 260, "special_tokens": ["<bt>"]}, "vocab_size must be an integer of at least 261 .*, got 260"),
        ({"special_tokens": ["<bt>", "<bt>"]}, "languages and special_tokens must be unique, got '<bt>'"),
    ],
)
def test_an_invalid_vocabulary_leaves_no_manifest(tmp_path, options, message):
    write_corpus(tmp_path)
    with pytest.raises(ValueError, match=message):
        run(tmp_path, "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_sentencepiece_model_as_tokenizer(tmp_path):
    sentencepiece = pytest.importorskip("sentencepiece")
    write_corpus(tmp_path)
    for kind in ("bpe", "unigram"):
        sentencepiece.SentencePieceTrainer.train(
            input=str(tmp_path / "train.a"),
            model_prefix=str(tmp_path / kind),
            model_type=kind,
            vocab_size=60,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    options = {"vocab_size": None, "max_steps": 2, "average_last": 1, "bpe_dropout": 0.1}
    result = run(tmp_path, "out", tokenizer=str(tmp_path / "bpe.model"), **options)
    assert AutoTokenizer.from_pretrained(result.folder).decode([1]) == "<s>"
    with pytest.raises(ValueError, match="BPE"):
        run(tmp_path, "other", tokenizer=str(tmp_path / "unigram.model"), **options)
    assert not (tmp_path / "other").exists()  # a manifest would not allow to correct the arguments


def test_a_non_finite_loss_stops_the_run(tmp_path):
    write_corpus(tmp_path)
    with pytest.raises(FloatingPointError, match=r"the loss is nan at step \d+, in a batch of input_ids \["):
        run(tmp_path, "out", learning_rate=1e30, warmup_steps=1, max_grad_norm=0.0)


@pytest.mark.slow
def test_an_incomplete_checkpoint_is_not_resumed(tmp_path, monkeypatch, caplog):
    write_corpus(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "_average_checkpoints", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(tmp_path, "out", max_steps=6)
    first, newest = all_checkpoints(tmp_path / "out")
    assert newest_complete(tmp_path / "out") == newest
    for path in (first, newest):
        (path / MARKER).rename(path / UNFINISHED)  # it is renamed last
        assert not is_complete(path)
    (newest / "optimizer.pt").write_bytes(b"half")
    assert newest_complete(tmp_path / "out") is None
    caplog.clear()
    assert run(tmp_path, "out", max_steps=6).steps == 6
    for folder in (first, newest):
        assert f"{folder} was incomplete and has been removed." in caplog.messages
    history = json.loads((newest / "trainer_state.json").read_text())["log_history"]
    assert history[0]["step"] == 4  # the first that is logged: it trained from step 0


@pytest.mark.slow
def test_a_full_disk_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
    write_corpus(tmp_path)
    save, calls = torch.save, []

    def full_at_the_second(*args, **kwargs):
        calls.append(args)
        if len(calls) > 4:
            raise OSError(28, "No space left on device")
        return save(*args, **kwargs)

    monkeypatch.setattr(torch, "save", full_at_the_second)
    with pytest.raises(OSError, match=r"could not be saved, .*checkpoint-2 is complete \(.*No space left"):
        run(tmp_path, "out")
    assert [path.name for path in all_checkpoints(tmp_path / "out")] == ["checkpoint-2"]
    monkeypatch.undo()
    assert run(tmp_path, "out").steps == STEPS


REGULARIZATIONS = {
    "plain": {},
    "regularized": {"bpe_dropout": 0.3, "ema_decay": 0.9, "r_drop_alpha": 5.0, "word_dropout": 0.2},
    "streaming": {"bpe_dropout": 0.3, "streaming": True, "buffer_pairs": 50},
}


@pytest.mark.slow
@pytest.mark.parametrize("regularization", REGULARIZATIONS)
def test_a_run_resumed_within_an_epoch_trains_on_the_remaining_batches(regularization, tmp_path, monkeypatch):
    """An epoch has nine batches: steps 4 and 12 are within the first and the second epoch."""
    warnings = []
    monkeypatch.setattr(transformers.trainer.logger, "warning", lambda message, *_: warnings.append(message))
    write_corpus(tmp_path)
    options = {"average_last": 1, "save_total_limit": 9, **REGULARIZATIONS[regularization]}
    run(tmp_path, "whole", **options)
    whole = load_file(tmp_path / "whole" / "model.safetensors")
    for stopped_at in (4, 10):
        for path in all_checkpoints(tmp_path / "whole"):
            if step_of(path) > stopped_at:
                shutil.rmtree(path)
        (tmp_path / "whole" / "model.safetensors").unlink()  # saved after the last step
        assert run(tmp_path, "whole", **options).steps == STEPS
        for name, weight in load_file(tmp_path / "whole" / "model.safetensors").items():
            assert torch.equal(whole[name], weight), name
    assert not [message for message in warnings if "missing keys" in message]  # such as those of tied weights


def test_early_stopping_keeps_the_best_checkpoint(tmp_path):
    write_corpus(tmp_path)
    options = {f"validation_{side}_file": str(tmp_path / f"test.{end}") for side, end in SIDES}
    options |= {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "bleu", "max_steps": 60}
    options |= {"load_best_model_at_end": True, "early_stopping_patience": 2}
    result = run(tmp_path, "out", **options, learning_rate=1e-9)  # without improvement
    assert result.steps < 60
    state = json.loads((all_checkpoints(tmp_path / "out")[-1] / "trainer_state.json").read_text())
    values = {entry["step"]: entry["eval_bleu"] for entry in state["log_history"] if "eval_bleu" in entry}
    assert values[state["best_global_step"]] == max(values.values())
    saved, best = (
        load_file(Path(folder, "model.safetensors")) for folder in (result.folder, state["best_model_checkpoint"])
    )
    for name, weight in best.items():
        assert torch.equal(saved[name], weight), name


def start(folder: Path, output: str) -> BaseProcess:
    command = []
    for name, value in arguments(folder, output).items():
        command += [f"--{name}"] if value is True else [f"--{name}", str(value)]
    return start_imported(SCRIPT, *command)


def finish(process: BaseProcess) -> None:
    process.join()
    assert process.exitcode == 0


@pytest.mark.slow
def test_a_run_killed_five_times_equals_an_uninterrupted_run(tmp_path):
    """After SIGKILL at five random times, the weights equal those of an uninterrupted run bit for bit."""
    write_corpus(tmp_path)
    finish(start(tmp_path, "first"))  # includes the imports of the server
    began = time.perf_counter()
    finish(start(tmp_path, "whole"))
    whole_run = time.perf_counter() - began
    times = random.Random(0)
    for _ in range(5):
        process = start(tmp_path, "killed")
        process.join(whole_run * times.uniform(0.1, 1.0))
        process.kill()
        process.join()
    finish(start(tmp_path, "killed"))
    weights = [load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed")]
    for name, weight in weights[0].items():
        assert torch.equal(weights[1][name], weight), name
