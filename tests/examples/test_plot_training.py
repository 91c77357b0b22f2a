"""The curves of a run as a PNG."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "plot_training.py"
LOG = [
    {"step": 10, "loss": 5.0, "learning_rate": 1e-3},
    {"step": 10, "eval_loss": 4.5, "eval_bleu": 3.0},
    {"step": 20, "loss": "4.0", "learning_rate": 5e-4},
]


def write_state(path, log):
    path.write_text(json.dumps({"log_history": log}))
    return str(path)


def plot(*arguments):
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_runs_side_by_side(tmp_path):
    states = [write_state(tmp_path / "a.json", LOG), write_state(tmp_path / "b.json", LOG[:1])]
    done = plot(*states, "--output", str(tmp_path / "both.png"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "both.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "run must be a folder of a run or a trainer_state.json"),
        ('{"log_history": []}', "must have logged a loss at least once"),
    ],
)
def test_what_is_no_run_is_refused(content, message, tmp_path):
    (tmp_path / "a.json").write_text(content)
    done = plot(str(tmp_path / "a.json"))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_folder_without_a_checkpoint_is_refused(tmp_path):
    done = plot(str(tmp_path))
    assert done.returncode == 2
    assert "complete checkpoint" in done.stderr
