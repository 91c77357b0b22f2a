"""Callbacks of the trainer: what evaluation shows, and the training time."""

import json
import shutil

import transformers

from modeling_random_transformer import cli
from modeling_random_transformer.training.callbacks import TimeCallback, describe_evaluation
from modeling_random_transformer.training.checkpoints import newest_complete, state_of
from modeling_random_transformer.training.run_record import TRAINING_RECORD
from tests.helpers.trainer import new_trainer
from tests.helpers.training import UNSCORED, flags, run, validation


def test_evaluation_shows_the_best_scores_and_three_translations(corpus, capsys):
    transformers.logging.set_verbosity_warning()  # commands of other tests raise the level, which hides the progress
    options = {"eval_strategy": "steps", "eval_steps": 6, "num_beams": 1, **validation(corpus)}
    assert cli.main(["train", *flags(corpus, **options)]) == 0
    lines = "\n".join(capsys.readouterr()).replace("\r", "\n").splitlines()
    scores = [line for line in lines if line.startswith("step ")]
    assert [line.split(":")[0] for line in scores] == ["step 6", "step 12"]
    assert all("BLEU" in line and "chrF++" in line and "(best " in line for line in scores)
    sources = (corpus / "test.a").read_text().split("\n")[:3]
    assert [line.split("→")[0].strip() for line in lines if "→" in line] == sources * 2


def test_the_best_score_is_that_of_all_evaluations():
    history = [{"step": 5, "eval_bleu": 9.0, "eval_chrf": 30.0}, {"step": 7, "loss": 2}, {"step": 10, "eval_bleu": 8.0}]
    assert describe_evaluation(history, [("a", "b")]) == "step 10: BLEU 8.00 (best 9.00 at step 5)\n  a  →  b"


def test_the_training_time_is_that_of_all_processes(copied):
    record = json.loads((copied / "out" / TRAINING_RECORD).read_text())
    last = copied / "out" / "checkpoint-12"
    state = json.loads((last / "trainer_state.json").read_text())
    saved = state["stateful_callbacks"]["TimeCallback"]["attributes"]["seconds"]
    assert 0 < saved <= record["train"]["facts"]["seconds"]
    shutil.rmtree(last)
    tenth = copied / "out" / "checkpoint-10" / "trainer_state.json"
    text = tenth.read_text()
    before = json.loads(text)["stateful_callbacks"]["TimeCallback"]["attributes"]["seconds"]
    assert 0 < before < saved
    longer = f"9{str(before)[1:]}"  # the size of the file is checked
    tenth.write_text(text.replace(str(before), longer))
    (copied / "out" / "model.safetensors").unlink()
    assert run(copied, "out", **UNSCORED).seconds > float(longer)


def test_a_training_resumes_with_another_callback(tmp_path):
    """As a training of version 0.2.0, whose checkpoints have no training time."""
    new_trainer(tmp_path, max_steps=1, save_steps=1).train()
    trainer = new_trainer(tmp_path, max_steps=2, save_steps=1)
    trainer.add_callback(TimeCallback())
    trainer.train(resume_from_checkpoint=True)
    saved = state_of(newest_complete(tmp_path))
    assert saved.global_step == 2
    assert saved.stateful_callbacks["TimeCallback"]["attributes"]["seconds"] > 0
