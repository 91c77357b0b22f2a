"""The command `report`: a trained model, a training set and invalid arguments."""

import shutil

import pytest

from modeling_random_transformer import cli
from tests.helpers.corpora import PAIRS, write_pairs
from tests.helpers.training import arguments, run, validation, write_corpus

REPORT = ["--model", "m", "--source_file", "a.tsv", "--output", "r.html"]


def test_the_command_writes_the_report_of_a_trained_model(tmp_path, capsys):
    write_corpus(tmp_path)
    run(tmp_path, "out", **validation(tmp_path), eval_strategy="steps", eval_steps=6, num_beams=1)
    files = [f"--{name}={path}" for name, path in arguments(tmp_path, "out").items() if name.startswith("test_")]
    files = [flag.replace("--test_", "--") for flag in files]
    line = ["report", "--model", str(tmp_path / "out"), *files, "--output", str(tmp_path / "r.html"), "--overwrite"]
    assert cli.main(line) == 0
    assert f"Wrote {tmp_path / 'r.html'} (" in capsys.readouterr().out
    page = (tmp_path / "r.html").read_text()
    assert "<h2>Training loss by step</h2>" in page
    assert "chrF++ by step" in page
    assert "highest loss" not in page  # without a training set
    [checkpoint, *_] = (tmp_path / "out").glob("checkpoint-*")
    (checkpoint / "trainer_state.json").rename(tmp_path / "out" / "trainer_state.json")
    for folder in (tmp_path / "out").glob("checkpoint-*"):
        shutil.rmtree(folder)
    assert cli.main([*line, "--overwrite"]) == 0
    assert "<h2>Training loss by step</h2>" in (tmp_path / "r.html").read_text()


def test_a_training_set_must_be_in_files(tmp_path, capsys):
    write_corpus(tmp_path)
    run(tmp_path, "out", num_beams=1)
    pairs = write_pairs(tmp_path, "tsv", PAIRS)
    line = ["report", "--model", str(tmp_path / "out"), "--source_file", str(pairs.source), "--output", "r.html"]
    assert cli.main([*line, "--train_source_file", "-"]) == 2
    assert "the corpus must be in files, since it is read more than once" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([*REPORT, "--model", "n"], "--model must be one model, got 2."),
        ([*REPORT, "--restart"], "arguments must be among those of --help, got --restart"),
        (
            [*REPORT, "--train_target_file", "a.tsv"],
            "--train_source_file must be given with --train_target_file, got None.",
        ),
        ([*REPORT[:-1], "a.tsv"], "--output must differ from source_file, got 'a.tsv' for both."),
    ],
)
def test_arguments_that_contradict_each_other(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_pairs(tmp_path, "tsv", PAIRS)
    assert cli.main(["report", *flags]) == 2
    assert message in capsys.readouterr().err


def test_keys_are_those_of_the_training_set(tmp_path, capsys):
    """The test set is in two files with one text per line."""
    write_corpus(tmp_path)
    line = ["report", "--model", str(tmp_path), "--source_file", str(tmp_path / "test.a")]
    line += ["--target_file", str(tmp_path / "test.b"), "--output", str(tmp_path / "r.html"), "--source_key", "en"]
    assert cli.main(line) == 2
    assert "--source_key and --target_key must be unset" in capsys.readouterr().err
    pairs = write_pairs(tmp_path, "tsv", PAIRS)
    assert cli.main([*line, "--train_source_file", str(pairs.source)]) == 2
    assert "--model must contain a model and its tokenizer" in capsys.readouterr().err
