"""The command line of training: one line for every error, and the exit codes of signals."""

import os
import signal
import sys
from pathlib import Path

import pytest

import modeling_random_transformer.training as training
from tests.helpers.training import arguments, write_corpus

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import train_translation


@pytest.fixture(autouse=True)
def _handlers_as_they_were():
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def main(monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["train_translation.py", *map(str, words)])
    return train_translation.main()


def flags(folder, **options):
    given = arguments(folder, "out", **options)
    return [f"--{name}={value}" for name, value in given.items()]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_steps: [1", "recipe.yaml must be YAML or JSON, got ParserError"),
        ("- 1", "recipe.yaml must hold names and values of arguments, got list"),
        ("max_steps: 2.5", "invalid int value: '2.5'"),
        ("max_steps: many", "invalid int value: 'many'"),
        ("bf16: perhaps", "argument --bf16"),
        ("num_train_epochs: 2", "num_train_epochs must be unset unless max_steps is -1"),
        ("1: 2", "recipe.yaml must name arguments only, got 1"),
    ],
)
def test_an_invalid_recipe_is_one_line(text, message, tmp_path, monkeypatch, capsys):
    write_corpus(tmp_path)
    (tmp_path / "recipe.yaml").write_text(text)
    given = [flag for flag in flags(tmp_path) if not flag.startswith("--max_steps")]
    assert main(monkeypatch, tmp_path / "recipe.yaml", *given) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("train_translation.py: error: ")
    assert message in line


def test_the_values_of_a_recipe_are_those_of_flags(tmp_path):
    write_corpus(tmp_path)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "learning_rate: 1e-3\nbf16: false\npredict_with_generate: no\nwarmup_steps: 10\nreport_to: [tensorboard]\n"
        "lr_scheduler_type: cosine\nlr_scheduler_kwargs: {num_cycles: 0.5}\nvocab_size: null\n"
    )
    files = [f"--{side}_file={tmp_path / f'train.{name}'}" for side, name in (("source", "a"), ("target", "b"))]
    _, model, args = train_translation.parse([str(recipe), *files, "--output_dir", str(tmp_path), "--use_cpu"])
    assert (args.learning_rate, args.bf16, args.predict_with_generate, args.warmup_steps) == (1e-3, False, False, 10)
    assert (args.report_to, args.lr_scheduler_kwargs, model.vocab_size) == (["tensorboard"], {"num_cycles": 0.5}, None)


@pytest.mark.parametrize("wrong", ["--max_stepss=4", "--max_step=4", "--max_steps"])
def test_an_unknown_flag_is_one_line(wrong, tmp_path, monkeypatch, capsys):
    write_corpus(tmp_path)
    assert main(monkeypatch, *flags(tmp_path), wrong) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert wrong.removesuffix("=4") in line


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_with_its_exit_code(number, code, tmp_path, monkeypatch, capsys):
    write_corpus(tmp_path)
    monkeypatch.setattr(training, "train_translation", lambda *_: os.kill(os.getpid(), number))
    try:
        returned = main(monkeypatch, *flags(tmp_path))
    except SystemExit as error:
        returned = error.code
    assert returned == code
    assert len(capsys.readouterr().err.splitlines()) == (number == signal.SIGINT)
