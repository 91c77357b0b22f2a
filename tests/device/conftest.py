"""Tests on a simulated accelerator (`make test-device`), in one process for each kind of device.

    SIMULATED_DEVICE=cuda python -m pytest tests/device

`tests/conftest.py` installs the device before torch is imported.
"""

import os

import pytest

from tests.device.simulated_device import unavailable

# Without a device, `pytest` collects none of the files.
collect_ignore_glob = {"cuda": [], "private": ["test_cuda*.py"]}.get(
    os.environ.get("SIMULATED_DEVICE", ""), ["test_*.py"]
)


@pytest.fixture(autouse=True, scope="session")
def _device() -> None:
    if reason := unavailable():
        pytest.skip(f"simulated device: {reason}")
