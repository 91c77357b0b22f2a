"""Tests on a simulated accelerator (`make test-device`), in one process for each kind of device.

    SIMULATED_DEVICE=cuda python -m pytest tests/device

`tests/conftest.py` installs the device before torch is imported.
"""

import os

import pytest

from tests.device.simulated_device import unavailable

# The files of each kind. Without a device, `pytest` collects none of them.
OTHER_FILES = {"cuda": "test_private*.py", "private": "test_cuda*.py"}
collect_ignore_glob = [OTHER_FILES.get(os.environ.get("SIMULATED_DEVICE", ""), "test_*.py")]


@pytest.fixture(autouse=True, scope="session")
def _device() -> None:
    if reason := unavailable():
        pytest.skip(f"simulated device: {reason}")
