"""The curves of a run as a PNG."""

import json
import sys

import plot_training
import pytest

LOG = [
    {"step": 10, "loss": 5.0, "learning_rate": 1e-3},
    {"step": 10, "eval_loss": 4.5, "eval_bleu": 3.0},
    {"step": 20, "loss": "4.0", "learning_rate": 5e-4},
]


def write_state(path, log):
    path.write_text(json.dumps({"log_history": log}))
    return str(path)


@pytest.fixture
def plot(monkeypatch, capsys):
    """Runs the script; returns its exit code and what it wrote to stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["plot_training.py", *arguments])
        return plot_training.main(), capsys.readouterr().err

    return run


def test_runs_side_by_side(plot, tmp_path):
    states = [write_state(tmp_path / "a.json", LOG), write_state(tmp_path / "b.json", LOG[:1])]
    code, errors = plot(*states, "--output", str(tmp_path / "both.png"))
    assert code == 0, errors
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "run must be a folder of a run or a trainer_state.json"),
        ('{"log_history": []}', "must have logged a loss at least once"),
    ],
)
def test_invalid_runs_raise(content, message, plot, tmp_path):
    (tmp_path / "a.json").write_text(content)
    code, errors = plot(str(tmp_path / "a.json"))
    assert code == 2
    assert message in errors


def test_a_folder_without_a_checkpoint_raises(plot, tmp_path):
    code, errors = plot(str(tmp_path))
    assert code == 2
    assert "complete checkpoint" in errors
