"""`python -m benchmarks` as its documentation calls it: from the root of the repository, without other paths."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_help_lists_the_benchmarks():
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "benchmarks", "--help"]
    completed = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True, check=True)
    assert all(name in completed.stdout for name in ("generate", "serving", "dry_run"))
