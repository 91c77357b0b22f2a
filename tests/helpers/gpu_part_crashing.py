"""A part of the GPU report with every outcome of a row; its process is killed in a row and at the end."""

import os
import signal
from unittest import SkipTest

import torch

COLUMNS = {"speed": "{:.1f}"}
CALLED = []  # in this process


def rows(_):
    yield "measured", lambda: {"speed": 1.25}
    yield "inexact", lambda: {"speed": 2.0, "error": "difference must be at most 1, got 2."}
    yield "not installed", skip
    yield "out of memory", raise_error
    yield "kernel", raise_device_error
    yield "new process", lambda: {"speed": float(len(CALLED))}
    yield "crash", kill
    yield "measured after it", lambda: {"speed": 2.5}
    kill()


def skip():
    raise SkipTest("no kernel")


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def raise_device_error():
    CALLED.append("kernel")
    raise torch.AcceleratorError("CUDA error: an illegal memory access was encountered")


def raise_error():
    raise RuntimeError("out of\nmemory")
