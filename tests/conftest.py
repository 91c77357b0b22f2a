"""Settings for all tests."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

# Tests must not access the network. Parallel workers share the cores.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

# `trust_remote_code` copies code into one folder per process, because a process imports the package there once.
os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp(prefix="modules_")

# One cache of compiled kernels per process and instruction set: kernels for other instructions can crash.
os.environ.setdefault(
    "TORCHINDUCTOR_CACHE_DIR",
    str(
        Path(__file__).parents[1]
        / ".cache"
        / f"torchinductor-{os.environ.get('ATEN_CPU_CAPABILITY', 'native')}"
        / os.environ.get("PYTEST_XDIST_WORKER", "main")
    ),
)

# Tests import example scripts as modules.
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
sys.path.insert(0, str(Path(__file__).parents[1] / "examples" / "space"))

# For tests/device. The device must be installed before torch is imported.
if kind := os.environ.get("SIMULATED_DEVICE"):
    from tests.device import simulated_device

    if simulated_device.library is None and simulated_device.unavailable() is None:
        simulated_device.install(kind, count=2)

import pytest
import torch
from accelerate import PartialState
from filelock import FileLock
from hypothesis import settings
from transformers import logging

from modeling_random_transformer import RandomTransformerForConditionalGeneration, RandomTransformerTokenizer
from tests.helpers.translation import random_tokenizer, random_translator

# A shell starts background jobs with SIGINT ignored. The tests of Ctrl-C need Python's handler.
signal.signal(signal.SIGINT, signal.default_int_handler)

EXPORT = Path(__file__).parent / "extras" / "export"
ONNX_MODEL = EXPORT / "test_onnx_model.py"
QUICKSTART = Path(__file__).parent / "examples" / "test_quickstart.py"
# Tests with these fixtures are part of `make test-all` only: a model trained for a minute and a half, and a browser.
LONG_FIXTURES = {"quickstart_folder", "browser"}

settings.register_profile("deterministic", derandomize=True, deadline=None, max_examples=20)
settings.load_profile("deterministic")
torch.set_num_threads(1)


def pytest_unconfigure() -> None:
    shutil.rmtree(os.environ["HF_MODULES_CACHE"], ignore_errors=True)


@pytest.fixture(autouse=True)
def _fixed_seed() -> None:
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _restore_transformers_logging() -> Iterator[None]:
    """Restore the logging level and progress bars, which example scripts change for the rest of the process."""
    verbosity = logging.get_verbosity()
    yield
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar()


@pytest.fixture(scope="session")
def tokenizer() -> RandomTransformerTokenizer:
    """The tokenizer of `translator`, which no test may change."""
    return random_tokenizer()


@pytest.fixture(scope="session")
def translator() -> RandomTransformerForConditionalGeneration:
    """A random model whose outputs vary and end, in evaluation mode, which no test may change."""
    return random_translator()


@pytest.fixture(scope="session")
def model() -> RandomTransformerForConditionalGeneration:
    """`translator` in float64, so that comparisons do not depend on the rounding of the CPU."""
    return random_translator().double()


@pytest.fixture(scope="session")
def translator_folder(
    translator: RandomTransformerForConditionalGeneration,
    tokenizer: RandomTransformerTokenizer,
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """The saved `translator` and its tokenizer, which no test may change."""
    folder = tmp_path_factory.mktemp("translator")
    translator.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def common_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary folder that all workers of pytest-xdist share."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder  # each worker has a subfolder


@pytest.fixture(scope="session")
def quickstart_folder(common_folder: Path) -> Path:
    """The output folder of `python examples/quickstart.py`, which must not be changed: model, tokenizer, plots, `data`.

    The first worker of pytest-xdist that needs the model trains it, in a minute or two. The others wait for it.
    """
    folder = common_folder / "quickstart"
    output = folder / "output.txt"  # what the command printed
    with FileLock(f"{folder}.lock"):
        if not output.exists():
            script = Path(__file__).parents[1] / "examples" / "quickstart.py"
            command = [sys.executable, str(script), "--output_dir", str(folder)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
            output.write_text(done.stdout)
    return folder


@pytest.fixture(scope="session")
def started_browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Chrome"]:
    """The browser of all tests of a process, which use `browser`."""
    from tests.helpers.browser import chromium  # imports Selenium, which few tests need

    with chromium(tmp_path_factory.mktemp("browser")) as driver:
        yield driver


@pytest.fixture
def browser(started_browser: "Chrome") -> "Chrome":
    """Headless Chromium with an empty page and log."""
    started_browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    started_browser.get("about:blank")
    for log in ("browser", "performance"):
        started_browser.get_log(log)
    return started_browser


@pytest.fixture
def _reset_accelerate() -> Iterator[None]:
    """For tests that run a command in this process, which initializes Accelerate."""
    yield
    PartialState._reset_state()


@pytest.fixture
def _state_on_cpu(_reset_accelerate: None) -> None:
    """Create Accelerate's state, which child processes inherit, and reset it after the test."""
    PartialState(cpu=True)


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    """A folder with a corpus for a training."""
    from tests.helpers.training import write_corpus  # takes seconds to import

    write_corpus(tmp_path)
    return tmp_path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with the files that have slow tests, so that parallel workers finish at about the same time.

    The export engines start thread pools, which is unsafe in a process that forks: their tests are the last of each
    worker. The tests of the quickstart are the first, since they train the model of `quickstart_folder`. Other files
    with this fixture are the last of the slow ones, so that no worker waits for the training. Two files need the export
    to ONNX: one of them is the last, so that no worker waits for it.
    """
    for item in items:
        if not LONG_FIXTURES.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker("long")
    slow = {item.path for item in items if any(mark.name in ("slow", "long") for mark in item.iter_markers())}
    trained = {item.path for item in items if "quickstart_folder" in getattr(item, "fixturenames", ())} - {QUICKSTART}

    def order(item: pytest.Item) -> tuple[bool, ...]:
        waits = item.path in trained or item.path == ONNX_MODEL
        return EXPORT in item.path.parents, item.path not in slow, waits, item.path != QUICKSTART

    items.sort(key=order)


def pytest_collection_finish() -> None:
    """Exclude the imported modules from garbage collection, which takes 0.4 s with them.

    transformers' common tests collect garbage before and after each test.
    """
    gc.collect()
    gc.freeze()
