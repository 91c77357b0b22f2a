"""Starting a script on several processes of this machine."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parent


def run_on_two_processes(script: Path, *arguments: str) -> subprocess.CompletedProcess:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return subprocess.run(
        [*launcher, str(script), *arguments],
        env=with_tests_on_path(),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def with_tests_on_path() -> dict[str, str]:
    """An environment in which a script finds the package and the modules beside the tests."""
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS.parent), str(TESTS)]), "OMP_NUM_THREADS": "1"}
