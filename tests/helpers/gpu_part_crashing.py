"""A part of the GPU report with every outcome of a row; its process is then killed."""

import os
import signal
from unittest import SkipTest

COLUMNS = {"speed": "{:.1f}"}


def rows(_):
    yield "measured", lambda: {"speed": 1.25}
    yield "inexact", lambda: {"speed": 2.0, "error": "difference must be at most 1, got 2."}
    yield "not installed", skip
    yield "out of memory", raise_error
    yield "crash", lambda: os.kill(os.getpid(), signal.SIGKILL)


def skip():
    raise SkipTest("no kernel")


def raise_error():
    raise RuntimeError("out of\nmemory")
