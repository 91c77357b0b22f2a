"""The curves of a run as a PNG."""

import json

import plot_training

LOG = [
    {"step": 10, "loss": 5.0, "learning_rate": 1e-3},
    {"step": 10, "eval_loss": 4.5, "eval_bleu": 3.0},
    {"step": 20, "loss": "4.0", "learning_rate": 5e-4},
]


def test_runs_side_by_side(tmp_path):
    for name, log in (("a", LOG), ("b", LOG[:1])):
        (tmp_path / f"{name}.json").write_text(json.dumps({"log_history": log}))
    output = tmp_path / "both.png"
    assert plot_training.main([*map(str, tmp_path.iterdir()), "--output", str(output)]) == 0
    assert output.read_bytes().startswith(b"\x89PNG")
