"""Helpers for distributed processes, started by `accelerate launch` or `torchrun`."""

import errno
import logging
import pickle
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from filelock import FileLock, Timeout

# Longer than any function of the first process. The default of NCCL is 10 minutes.
GROUP_TIMEOUT = timedelta(days=365)
WITHOUT_LOCKS = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS}
logger = logging.getLogger(__name__)


def call_on_main_process(function: Callable[[], Any]) -> Any:
    """Call a function in the first process, and return its result, or raise its error, in every process.

    The other processes wait without the timeout of the process group. An error that cannot be pickled is a
    `RuntimeError` there.
    """
    outcome: list[Any] = [None]
    error: Exception | None = None
    if PartialState().is_main_process:
        try:
            outcome = [function()]
        except Exception as raised:
            error = raised
            outcome = [picklable(raised)]
    # The outcome of the first process replaces the outcomes of the other processes.
    if dist.is_available() and dist.is_initialized() and dist.is_gloo_available():
        dist.broadcast_object_list(outcome, src=0, group=cpu_group(dist.group.WORLD))
    else:
        broadcast_object_list(outcome)
    [result] = outcome
    if error is not None:
        raise error
    if isinstance(result, Exception):
        raise result
    return result


@contextmanager
def exclusive(path: Path, message: str) -> Iterator[None]:
    """Lock a file in the first process; the lock is released when the process ends for any reason.

    On a file system without locks, a warning names the folder, and nothing is locked.

    Raises:
        ValueError: with this message, if another process holds the lock.
        OSError: the file cannot be created.
    """
    with ExitStack() as stack:

        def acquire() -> None:
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                stack.enter_context(in_turn(path, timeout=0))
            except Timeout:
                raise ValueError(message) from None

        call_on_main_process(acquire)
        yield


@contextmanager
def in_turn(path: Path, timeout: float = -1) -> Iterator[None]:
    """Lock a file, and wait for other processes that have locked it, by default without a limit; see `exclusive`.

    Raises:
        Timeout: another process holds the lock after these seconds.
        OSError: the file cannot be created.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=timeout)
    except (NotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno not in WITHOUT_LOCKS:
            raise
        logger.warning("%s is on a file system without locks: start one call at a time.", path.parent)
    try:
        yield
    finally:
        lock.release()


@lru_cache(maxsize=1)
def cpu_group(world: Any) -> Any:  # noqa: ARG001 (cache key)
    """A group of all processes that communicate on the CPU, with `GROUP_TIMEOUT`."""
    return dist.new_group(backend="gloo", timeout=GROUP_TIMEOUT)


def picklable(error: Exception) -> Exception:
    """The error itself if other processes can unpickle it, otherwise a `RuntimeError` with its message."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
