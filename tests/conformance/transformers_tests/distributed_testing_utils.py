"""Stub: starts the processes of a distributed test. transformers' module of this name is not published."""

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from tests.helpers.processes import fork_server


def _get_distributed_device_type() -> str:
    accelerator = torch.accelerator.current_accelerator()
    return "cpu" if accelerator is None else accelerator.type


def _get_distributed_backend() -> str:
    return dist.get_default_backend_for_device(_get_distributed_device_type())


def _get_rank_device(rank: int) -> torch.device:
    device_type = _get_distributed_device_type()
    return torch.device("cpu") if device_type == "cpu" else torch.device(device_type, rank)


def _set_rank_device(rank: int) -> None:
    if _get_distributed_device_type() != "cpu":
        torch.accelerator.set_device_index(rank)


def _start_rank_processes(function: Callable, args: tuple, nprocs: int) -> None:
    """Run `function(rank, *args)` in `nprocs` processes and raise the first of their exceptions."""
    fork_server()  # imports once, in the process that all ranks are forked from
    mp.start_processes(_run_on_one_thread, (function, args), nprocs, start_method="forkserver")


def _run_on_one_thread(rank: int, function: Callable, args: tuple) -> None:
    torch.set_num_threads(1)  # the ranks already share the cores
    function(rank, *args)


def run_distributed(world_size: int) -> Callable[[Callable], Callable]:
    """Decorate `function(rank, …)` so that a call without the rank runs it in `world_size` connected processes."""

    def decorate(function: Callable) -> Callable:
        def run(*args: Any) -> None:
            with tempfile.TemporaryDirectory() as folder:
                meeting_point = f"file://{folder}/ranks"  # a file, because a free port may be taken before it is used
                _start_rank_processes(_run_rank, (world_size, meeting_point, function, args), world_size)

        return run

    return decorate


def _run_rank(rank: int, world_size: int, meeting_point: str, function: Callable, args: tuple) -> None:
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    dist.init_process_group(_get_distributed_backend(), init_method=meeting_point, rank=rank, world_size=world_size)
    function(rank, *args)
    dist.barrier()
    dist.destroy_process_group()
