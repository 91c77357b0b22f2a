"""Fixtures of the examples. The quickstart's model is trained once per test session, for all tests that need it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.py"
OUTPUT = "output.txt"  # of the training command, in the model's folder


@pytest.fixture(scope="session")
def quickstart_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output folder of `python examples/quickstart.py`, which must not be changed: model, tokenizer, plots, `data`.

    The first worker of pytest-xdist that needs the model trains it, in a minute or two. The others wait for it.
    """
    home = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        home = home.parent  # each worker has a subfolder
    folder = home / "quickstart"
    with FileLock(f"{folder}.lock"):
        if not (folder / OUTPUT).exists():
            command = [sys.executable, str(QUICKSTART), "--output_dir", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
            (folder / OUTPUT).write_text(done.stdout)
    return folder


@pytest.fixture
def quickstart_output(quickstart_folder: Path) -> str:
    """What the training command printed."""
    return (quickstart_folder / OUTPUT).read_text()
