"""Runs the parts one after another and writes the Markdown tables."""

import argparse
import importlib
import json
import multiprocessing
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from .settings import SMOKE, Settings
from .worker import run_part

NAMES = ("first", "graphs", "train", "tests", "checks", "generate", "utilization", "recipe", "devices")
PARTS = {name: f"{__package__}.{name}" for name in NAMES}
LIMIT = 600.0  # seconds per part
PROGRAM = "python -m benchmarks gpu"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu"), help="folder of the report")
    parser.add_argument(
        "--parts", nargs="+", default=list(PARTS), metavar="PART", help=f"parts to run: {', '.join(PARTS)}"
    )
    parser.add_argument("--smoke", action="store_true", help="test the code on a CPU, with tiny sizes")


def run(options: argparse.Namespace) -> None:
    """Run the parts; exit with status 1 if one of them failed."""
    try:
        check(options)
    except ValueError as error:
        sys.exit(f"{PROGRAM}: error: {error}")
    settings = SMOKE if options.smoke else Settings()
    if settings.start_method == "forkserver":
        multiprocessing.set_forkserver_preload(["__main__", *PARTS.values()])
    failed = []
    for name in options.parts:
        print(f"{name} (at most {LIMIT:g} s)", flush=True)
        report = run_part(PARTS[name], settings, options.output / f"{name}.json", LIMIT)
        if problems(report):
            failed.append(name)
            print(f"  failed: {'; '.join(problems(report))} (see {options.output / name}.log)", flush=True)
    page = options.output / "report.md"
    page.write_text(markdown(options.output, options.smoke), encoding="utf-8")
    print(f"wrote {page}")
    if failed:
        sys.exit(f"{PROGRAM}: failed parts: {', '.join(failed)}")


def check(options: argparse.Namespace) -> None:
    """Raise an error before the first part starts."""
    if unknown := [name for name in options.parts if name not in PARTS]:
        raise ValueError(f"--parts must be among {', '.join(PARTS)}, got {', '.join(unknown)}.")
    if not options.smoke and not torch.cuda.is_available():
        raise ValueError("a GPU must be available to torch, got none. --smoke tests the code on a CPU.")
    try:
        options.output.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=options.output).close()
    except OSError as error:
        raise ValueError(f"--output must be a writable folder, got {options.output}: {error.strerror}.") from error


def problems(report: dict[str, Any]) -> list[str]:
    """The errors of a part and of its rows."""
    errors = [report["error"], *(row.get("error") and f"{row['label']}: {row['error']}" for row in report["rows"])]
    return [error for error in errors if error]


def markdown(folder: Path, smoke: bool) -> str:
    """A section for every part that has been measured."""
    title = "GPU report" + (" (smoke test on a CPU: figures are not meaningful)" if smoke else "")
    paths = {name: folder / f"{name}.json" for name in PARTS}
    sections = [section(name, json.loads(path.read_text())) for name, path in paths.items() if path.exists()]
    return "\n".join([f"# {title}", *sections])


def section(name: str, report: dict[str, Any]) -> str:
    """Heading, description, environment and table of one part."""
    part = importlib.import_module(PARTS[name])
    heading, _, description = (part.__doc__ or "").strip().partition("\n")
    columns = list(part.COLUMNS)
    environment = [f"{key} {value}" for key, value in report["environment"].items() if value is not None]
    lines = ["", f"## {heading.rstrip('.')}", description.rstrip(), "", ", ".join(environment) + ".", ""]
    lines += ["| " + " | ".join(["", *columns]) + " |", "|" + "---|" * (len(columns) + 1)]
    for row in report["rows"]:
        lines.append("| " + " | ".join([row["label"], *cells(row, columns)]) + " |")
    return "\n".join([*lines, *(["", f"**Failed: {report['error']}.**"] if report["error"] else []), ""])


def cells(row: dict[str, Any], columns: list[str]) -> list[str]:
    """The figures of a row, or in the first column why there are none; an error follows the last figure."""
    texts = [row.get("cells", {}).get(column, "") for column in columns]
    note = f"**failed:** {row['error']}" if row.get("error") else row.get("skipped", "")
    index = -1 if any(texts) else 0
    texts[index] = " ".join(filter(None, [texts[index], note]))
    return texts
