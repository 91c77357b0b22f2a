"""Two processes with half of each step's batches follow one process with all of them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import run_on_two_processes, with_tests_on_path
from test_run import write_corpus

WORKER = Path(__file__).with_name("ddp_worker.py")


@pytest.mark.slow
def test_data_parallel_training_follows_one_process(tmp_path):
    write_corpus(tmp_path)
    alone = [sys.executable, str(WORKER), str(tmp_path), "one", "2"]
    done = subprocess.run(alone, capture_output=True, text=True, check=False, env=with_tests_on_path())
    assert done.returncode == 0, done.stderr[-3000:]
    done = run_on_two_processes(WORKER, str(tmp_path), "two", "1")
    assert done.returncode == 0, done.stderr[-3000:]
    one, two = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("one", "two"))
    assert len(one) == 20
    assert two == pytest.approx(one, abs=1e-4)
