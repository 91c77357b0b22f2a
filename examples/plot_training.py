"""Plot the loss, scores and learning rate of training runs by step, from `trainer_state.json` of the newest checkpoint.

python examples/plot_training.py outputs/en-de                      # writes outputs/en-de/training.png
python examples/plot_training.py outputs/a outputs/b --output a_and_b.png
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

from modeling_random_transformer.training import newest_complete
from tutorials.report import save_figure
from tutorials.scripts import exit_status, script_parser

matplotlib.use("Agg")  # renders to files, without a display
from matplotlib import pyplot as plt

# Panels from top to bottom: the label of the axis, and the plotted entries of the log.
PANELS = {
    "loss, nats per token": ("loss", "eval_loss"),
    "score on the validation set": ("eval_bleu", "eval_chrf"),
    "learning rate": ("learning_rate",),
}
NAMES = {"loss": "training", "eval_loss": "validation", "eval_bleu": "BLEU", "eval_chrf": "chrF++"}


def main(argv: Sequence[str] | None = None) -> int:
    parser = script_parser("plot_training.py", __doc__)
    parser.add_argument("runs", nargs="+", type=Path, help="output folders of runs, or trainer_state.json files")
    parser.add_argument("--output", type=Path, help="PNG to write (default: training.png in the first folder)")
    options = parser.parse_args(argv)
    return exit_status(lambda: run(options.runs, options.output), parser.prog)


def run(runs: Sequence[Path], output: Path | None) -> None:
    logs = {str(run): read_log(run) for run in runs}
    folder = runs[0] if runs[0].is_dir() else runs[0].parent
    output = output or folder / "training.png"
    plot(logs, output)
    print(output)


def read_log(run: Path) -> list[dict[str, Any]]:
    """The log of a run: one mapping per log entry.

    Raises:
        ValueError: there is no complete checkpoint, or the file has no log.
    """
    path = run
    if run.is_dir():
        checkpoint = newest_complete(run)
        if checkpoint is None:
            raise ValueError(f"run must be a folder with a complete checkpoint, or a trainer_state.json, got {run}.")
        path = checkpoint / "trainer_state.json"
    try:
        log = json.loads(path.read_text(encoding="utf-8"))["log_history"]
    except (json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"run must be a folder of a run or a trainer_state.json, got {run}.") from error
    if not any(set(entry) & set(PANELS["loss, nats per token"]) for entry in log):
        raise ValueError(f"run must have logged a loss at least once, but {run} has none: decrease logging_steps.")
    return log


def plot(logs: dict[str, list[dict[str, Any]]], output: Path) -> None:
    """Plot one panel per logged quantity, with one color per run."""
    panels = {
        label: [name for name in names if any(name in entry for log in logs.values() for entry in log)]
        for label, names in PANELS.items()
    }
    panels = {label: names for label, names in panels.items() if names}
    figure, axes = plt.subplots(len(panels), sharex=True, squeeze=False, figsize=(8, 2.8 * len(panels)))
    for axis, (label, names) in zip(axes[:, 0], panels.items(), strict=True):
        for color, (run, log) in enumerate(logs.items()):
            for style, name in zip(("-", "--"), names, strict=False):
                points = [(entry["step"], float(entry[name])) for entry in log if name in entry]
                shown = " ".join(part for part in (NAMES.get(name), run if len(logs) > 1 else None) if part)
                marker = "o" if name.startswith("eval") else None
                steps, values = [point[0] for point in points], [point[1] for point in points]
                axis.plot(steps, values, style, color=f"C{color}", marker=marker, ms=3, label=shown or None)
        axis.set_ylabel(label)
        axis.grid(alpha=0.3)
        if axis.get_legend_handles_labels()[1]:
            axis.legend(fontsize="small")
    axes[-1, 0].set_xlabel("optimizer step")
    figure.tight_layout()
    save_figure(figure, output, dpi=120)
    plt.close(figure)


if __name__ == "__main__":
    sys.exit(main())
