"""Common tests of transformers.

The tests that every model of transformers runs, on this device (`tests/conformance`). The first run downloads them.
"""

import os
import tempfile
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from ..generate import DEVICE
from .parts import Figures, Rows, start_processes
from .settings import Settings
from .worker import ROOT

COLUMNS = {"passed": "{}", "skipped": "{}", "failed": "{}"}


def rows(settings: Settings) -> Rows:
    for name in settings.test_files:
        file = f"tests/conformance/test_{name}.py"
        yield f"`{file}`", partial(run_tests, file, settings)


def run_tests(file: str, settings: Settings) -> Figures:
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        start_processes(run_pytest, (file, settings.test_options, results), 1, settings)
        if not results.exists():
            raise RuntimeError("pytest ended without results.")
        cases = list(ElementTree.parse(results).iter("testcase"))
    failed = [case.get("name") for case in cases if any(case.find(kind) is not None for kind in ("failure", "error"))]
    skipped = sum(case.find("skipped") is not None for case in cases)
    figures: Figures = {"passed": len(cases) - len(failed) - skipped, "skipped": skipped, "failed": len(failed)}
    if failed or not cases:
        figures["error"] = ", ".join(map(str, failed)) or "no tests were found"
    return figures


def run_pytest(_: int, file: str, options: tuple[str, ...], results: Path) -> None:
    """Run a file of tests in this process; its output is part of the log."""
    import pytest

    os.dup2(2, 1)
    os.chdir(ROOT)
    os.environ["TRANSFORMERS_TEST_DEVICE"] = DEVICE
    pytest.main([file, *options, "-p", "no:cacheprovider", f"--junitxml={results}"])
