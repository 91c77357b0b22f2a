"""Run a script on several processes, or in a process that has already imported the package."""

import multiprocessing
import os
import runpy
import subprocess
import sys
from multiprocessing.process import BaseProcess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def run_on_two_processes(script: Path, *arguments: str) -> subprocess.CompletedProcess:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    return subprocess.run(
        [*launcher, str(script), *arguments],
        env=with_tests_on_path(),
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )


def with_tests_on_path() -> dict[str, str]:
    """An environment in which scripts import the package and the test helpers from this repository."""
    return os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def start_imported(script: Path, *arguments: str, imports: tuple[str, ...]) -> BaseProcess:
    """Run a script in a child of a fork server, which imports these modules only once.

    The first call in a process determines the imports of the server.
    """
    os.environ["OMP_NUM_THREADS"] = "1"  # a process with threads must not fork
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(list(imports))
    process = server.Process(target=_run_script, args=(str(script), arguments))
    process.start()
    return process


def _run_script(script: str, arguments: tuple[str, ...]) -> None:
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(nowhere.fileno(), 2)
    sys.argv = [script, *arguments]
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
