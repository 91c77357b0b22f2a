"""Functions in a child process with limits, and the report of their outcomes."""

import os
import pickle
import resource
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers.utils import logging


@dataclass
class Report:
    """Counts of outcomes, and one line for each finding and for each error that does not help its reader."""

    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    unhelpful: list[str] = field(default_factory=list)


def in_process(run: Callable[[], Any], seconds: int, memory: int | None = None) -> Any:
    """The result of a function in a child process, or what it raised or how the process ended without a result.

    Args:
        run: the function; its result is pickled.
        seconds: the limit of CPU time.
        memory: the limit of memory in bytes, beyond that of this process.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        logging.disable_progress_bar()
        status = 1
        try:
            if memory is not None:
                memory += int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
                resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
            try:
                result = run()
            except BaseException as error:  # also a panic of the tokenizers library
                result = f"raised {type(error).__name__}: {error}"
            with open(write, "wb") as pipe:
                pickle.dump(result, pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as pipe:
        result = pipe.read()
    _, status = os.waitpid(child, 0)
    return f"ended with status {status}" if status else pickle.loads(result)
