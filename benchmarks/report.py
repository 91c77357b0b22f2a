"""Results as a table, JSON and a PNG."""

import json
import platform
from dataclasses import asdict
from pathlib import Path
from typing import Any

import matplotlib
import torch
import transformers
from rich.console import Console
from rich.table import Table

from .timing import Paired

matplotlib.use("Agg")
from matplotlib import pyplot as plt

Rows = list[tuple[str, str, Paired]]  # workload, peer, result


def show(title: str, rows: Rows) -> None:
    table = Table("workload", "peer", "speedup: median (range)", "ours, ms", "peer, ms", title=title)
    for work, peer, result in rows:
        table.add_row(work, peer, str(result), f"{result.ours * 1000:.1f}", f"{result.theirs * 1000:.1f}")
    Console().print(table)


def save(name: str, rows: Rows, folder: Path, more: dict[str, Any] | None = None) -> None:
    """Write `name.json` with all ratios, the hardware and the entries of `more`, and `name.png` with the medians."""
    folder.mkdir(parents=True, exist_ok=True)
    measured = [{"work": work, "against": peer, **asdict(result)} for work, peer, result in rows]
    (folder / f"{name}.json").write_text(
        json.dumps({"hardware": hardware(), "measured": measured, **(more or {})}, indent=1) + "\n"
    )
    draw(rows, folder / f"{name}.png")


def hardware() -> dict[str, Any]:
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "device": device,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def draw(rows: Rows, path: Path) -> None:
    """Bar chart of the medians. Error bars span the slowest to the fastest pair."""
    labels = [f"{work}, against {peer}" for work, peer, _ in rows]
    results = [result for _, _, result in rows]
    medians = [result.median for result in results]
    spread = [[m - min(r.ratios) for m, r in zip(medians, results, strict=True)]]
    spread += [[max(r.ratios) - m for m, r in zip(medians, results, strict=True)]]
    figure, axes = plt.subplots(figsize=(9, 1 + 0.3 * len(rows)), layout="constrained")
    axes.barh(labels, medians, xerr=spread, color="#1f5a94", error_kw={"ecolor": "#e3944a"})
    axes.axvline(1, color="black", linewidth=1)
    axes.invert_yaxis()
    axes.set_xlabel("speedup (median of pairs; error bar: slowest to fastest pair)")
    figure.savefig(path, dpi=120)
    plt.close(figure)
