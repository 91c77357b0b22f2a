"""Run a script in processes that need not import the package: children of a server that has imported it."""

import faulthandler
import multiprocessing
import os
import runpy
import socket
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from torch.distributed import TCPStore

ROOT = Path(__file__).parents[2]
WAIT_LIMIT = 600  # seconds that a test waits for others; starting a process takes minutes on a loaded machine
# Imported once per pytest process, by the server. The first process that it starts determines them.
IMPORTS = [
    "accelerate.commands.accelerate_cli",
    "evaluate",
    "modeling_random_transformer.training",
    "modeling_random_transformer.commands.translate",
    "sacrebleu",
    "torch.distributed.fsdp",
    "transformers.generation",
    "transformers.testing_utils",
]


class Ended(NamedTuple):
    returncode: int  # of the first process that fails, or 0
    stderr: str  # of all processes, each followed by its return code


def start_imported(
    script: Path | str,
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    stderr: Path | None = None,
) -> BaseProcess:
    """Run a script, or a module given by its name, in a child of a fork server that has imported `IMPORTS`."""
    strings = str(script), list(map(str, arguments)), dict(environment or {}), str(stderr or os.devnull)
    process = fork_server().Process(target=_run_script, args=strings)
    process.start()
    return process


def free_port() -> int:
    """A port of this machine that no process uses."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def fork_server() -> ForkServerContext:
    os.environ["OMP_NUM_THREADS"] = "1"  # a process with threads must not fork
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(IMPORTS)
    return context


@contextmanager
def start_two_processes(script: Path | str, *arguments: object) -> Iterator[tuple[list[BaseProcess], list[Path]]]:
    """Start two processes with the environment that `torchrun` gives them; yields them and the files of their stderr.

    The processes must have ended at the end of the block.
    """
    # As torchrun does, this process serves the store: its port cannot be taken before the processes connect.
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    common |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, str(rank)) for rank in range(2)]
        ranks = [
            start_imported(
                script, *arguments, environment=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=file
            )
            for rank, file in enumerate(files)
        ]
        yield ranks, files


def run_on_two_processes(script: Path | str, *arguments: object, timeout: float = 1200) -> Ended:
    """Run a script in two processes, and stop one if the other fails."""
    with start_two_processes(script, *arguments) as (ranks, files):
        deadline = time.monotonic() + timeout
        while running := [rank for rank in ranks if rank.exitcode is None]:
            if any(rank.exitcode for rank in ranks) or time.monotonic() > deadline:
                for rank in running:
                    rank.kill()
            running[0].join(0.05)
        ends = [
            f"{file.read_text()}\n[process {rank}: return code {process.exitcode}]\n"
            for rank, (process, file) in enumerate(zip(ranks, files, strict=True))
        ]
        return Ended(next((process.exitcode for process in ranks if process.exitcode), 0), "".join(ends))


def _run_script(script: str, arguments: list[str], environment: dict[str, str], stderr: str) -> None:
    with open(os.devnull, "w") as nowhere, open(stderr, "w") as errors:
        os.dup2(nowhere.fileno(), 1)
        os.dup2(errors.fileno(), 2)
    faulthandler.enable()  # a crash of native code is shown, too
    os.environ.update(environment)
    sys.argv = [script, *arguments]
    if not Path(script).is_file():
        runpy.run_module(script, run_name="__main__")
        return
    sys.path.insert(0, str(Path(script).parent))
    runpy.run_path(script, run_name="__main__")
