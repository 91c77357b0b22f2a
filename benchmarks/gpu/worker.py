"""Measures one part in a separate process, which can crash or hang without effect on the others."""

import importlib
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import Any
from unittest import SkipTest

import torch

from modeling_random_transformer.base.files import write_atomically

from ..report import hardware
from .parts import Figures
from .settings import Settings

ROOT = Path(__file__).parents[2]


def run_part(module: str, settings: Settings, path: Path, limit: float) -> dict[str, Any]:
    """Measure the part `module` for at most `limit` seconds: in a new process, and after a crash in another one.

    Returns the content of the JSON file `path`: the environment, the rows that were measured, and an error or `None`.
    """
    for file in (path, path.with_suffix(".log")):
        file.unlink(missing_ok=True)
    begin = time.monotonic()
    report: dict[str, Any] = {"environment": {}, "rows": []}
    while True:
        done = len(report["rows"])
        status = run_process((module, settings, path), begin + limit - time.monotonic(), settings.start_method)
        report = json.loads(path.read_text()) if path.exists() else report
        if status == 0:
            error = None
        elif status is None:
            error = f"the time limit of {limit:g} s was reached"
        else:
            error = f"the process ended with status {status}"
        if error and report["rows"] and report["rows"][-1].keys() == {"label"}:  # the measurement was not finished
            report["rows"][-1]["error"] = error
        if not status or len(report["rows"]) == done:
            break
        write_report(path, report)
    report |= {"seconds": round(time.monotonic() - begin), "error": error}
    write_report(path, report)
    return report


def run_process(arguments: tuple[str, Settings, Path], limit: float, start_method: str) -> int | None:
    """Run `measure` in a new process. Returns its status, `None` after `limit` seconds."""
    context: Any = multiprocessing.get_context(start_method)
    process = context.Process(target=measure, args=arguments)
    process.start()
    try:
        process.join(max(limit, 0))
        status: int | None = process.exitcode
    finally:  # runs after Ctrl-C too
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # kills the processes that it has started too
        process.kill()
        process.join()
    return status


def measure(module: str, settings: Settings, path: Path) -> None:
    """Measure the rows of a part that the file does not have. It is written before and after each row."""
    os.setsid()  # a process group, which `run_process` kills as a whole
    with path.with_suffix(".log").open("a") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    if settings.threads:
        torch.set_num_threads(settings.threads)
    part = importlib.import_module(module)
    report: dict[str, Any] = {"environment": environment(), "rows": []}
    report = json.loads(path.read_text()) if path.exists() else report
    write_report(path, report)
    for label, function in islice(part.rows(settings), len(report["rows"]), None):
        row: dict[str, Any] = {"label": label}
        report["rows"].append(row)
        write_report(path, report)
        row |= outcome(function, part.COLUMNS)
        write_report(path, report)
        texts = [f"{column} {cell}" for column, cell in row.get("cells", {}).items()]
        texts += [row[key] for key in ("skipped", "error") if row.get(key)]
        print(f"  {label}: {', '.join(texts)}", flush=True)
        if (row.get("error") or "").startswith(torch.AcceleratorError.__name__):
            sys.exit(1)  # the process cannot use the device any more
        torch.cuda.empty_cache()


def outcome(function: Callable[[], Figures], columns: dict[str, str]) -> dict[str, Any]:
    """Call the function of a row: its figures, also as text, or why there are none."""
    try:
        figures = function()
    except SkipTest as skipped:
        return {"skipped": str(skipped)}
    except Exception as error:
        traceback.print_exc()
        message = " ".join(str(error).split())[:300].replace("|", "/")  # one line without separators of a table
        return {"error": f"{type(error).__name__}: {message}"}
    cells = {name: template.format(figures[name]) for name, template in columns.items() if name in figures}
    return {"figures": figures, "cells": cells, "error": figures.pop("error", None)}


def write_report(path: Path, report: dict[str, Any]) -> None:
    write_atomically(path, [json.dumps(report, indent=1, default=asdict).encode(), b"\n"])


def environment() -> dict[str, Any]:
    """Hardware and versions."""
    return {
        **hardware(),
        "devices": torch.cuda.device_count(),
        "driver": first_line("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
        "cuda": torch.version.cuda,
        "commit": first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"),
    }


def first_line(*command: str) -> str | None:
    """The first line that a program prints; `None` if it fails or is not installed."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.partition("\n")[0] or None
