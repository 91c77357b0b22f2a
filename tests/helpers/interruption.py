"""Work that is interrupted: a process that is killed at a file operation, and functions that raise an error."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


def killed_after(steps: int, work: Callable[[], object], folder: Path) -> bool:
    """Run `work` in a child process that kills itself after this number of operations on files in `folder`.

    Returns False if the work finished before.
    """
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        done = 0

        def kill_at_limit(event, arguments):
            nonlocal done
            if event in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.scandir", "os.listdir"):
                if str(folder) not in str(arguments[0]):
                    return
                if done == steps:
                    os.kill(os.getpid(), signal.SIGKILL)
                done += 1

        with contextlib.suppress(BaseException):
            sys.addaudithook(kill_at_limit)
            work()
            os._exit(0)
        os._exit(1)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0, "the work itself failed"
    return False


def interrupt_at(number: int, owner: Any, name: str, patch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Raise a KeyboardInterrupt in one call of a function; returns a list that receives the arguments of each call."""
    original, calls = getattr(owner, name), list[tuple[Any, ...]]()

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == number:
            raise KeyboardInterrupt
        return original(*arguments, **options)

    patch.setattr(owner, name, counted)
    return calls


class StoppedError(Exception):
    """Stops a run."""


def stop(*_args, **_kwargs):
    raise StoppedError
