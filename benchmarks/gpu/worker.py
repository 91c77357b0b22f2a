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
from pathlib import Path
from typing import Any
from unittest import SkipTest

import torch

from modeling_random_transformer.utils.atomic_files import write_atomically

from ..report import hardware
from .parts import Figures
from .settings import Settings

ROOT = Path(__file__).parents[2]


def run_part(module: str, settings: Settings, path: Path, limit: float) -> dict[str, Any]:
    """Measure the part `module` in a new process, for at most `limit` seconds.

    Returns the content of the JSON file `path`: the environment, the rows that were measured, and an error or `None`.
    """
    path.unlink(missing_ok=True)
    context: Any = multiprocessing.get_context(settings.start_method)
    process = context.Process(target=measure, args=(module, settings, path))
    begin = time.monotonic()
    process.start()
    try:
        process.join(limit)
        error = None if process.exitcode == 0 else f"the process ended with status {process.exitcode}"
        if process.exitcode is None:
            error = f"the time limit of {limit:g} s was reached"
    finally:  # also after Ctrl-C
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # with the processes that it has started
        process.kill()
        process.join()
    report: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"environment": {}, "rows": []}
    report |= {"seconds": round(time.monotonic() - begin), "error": error}
    write_report(path, report)
    return report


def measure(module: str, settings: Settings, path: Path) -> None:
    """Measure every row of a part. The file is written after each row, so that a crash loses only one."""
    os.setsid()  # a process group, which `run_part` kills as a whole
    with path.with_suffix(".log").open("w") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    if settings.threads:
        torch.set_num_threads(settings.threads)
    part = importlib.import_module(module)
    report: dict[str, Any] = {"environment": environment(), "rows": []}
    write_report(path, report)
    for label, function in part.rows(settings):
        row = {"label": label, **outcome(function, part.COLUMNS)}
        report["rows"].append(row)
        write_report(path, report)
        texts = [f"{column} {cell}" for column, cell in row.get("cells", {}).items()]
        texts += [row[key] for key in ("skipped", "error") if row.get(key)]
        print(f"  {label}: {', '.join(texts)}", flush=True)
        torch.cuda.empty_cache()


def outcome(function: Callable[[], Figures], columns: dict[str, str]) -> dict[str, Any]:
    """Call the function of a row: its figures, also as text, or why there are none."""
    try:
        figures = function()
    except SkipTest as skipped:
        return {"skipped": str(skipped)}
    except Exception as error:
        traceback.print_exc()
        message = " ".join(str(error).split())[:300].replace("|", "/")  # one line, without separators of a table
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
