"""A process that is killed at a given file operation."""

import contextlib
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path


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


class StoppedError(Exception):
    """Stops a run."""


def stop(*_args, **_kwargs):
    raise StoppedError
