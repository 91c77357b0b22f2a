"""The processes of a launcher that translate a file, and what is left when they are killed."""

import contextlib
import os
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import psutil
import pytest

from modeling_random_transformer.inference import encode_lines, translate
from tests.helpers.processes import ROOT, WAIT_LIMIT, start_imported
from tests.helpers.translation import some_texts

LAUNCHER = "accelerate.commands.accelerate_cli"
# Two processes on a machine without accelerators: `--cpu` would start one.
TWO = ["--multi_gpu", "--num_processes", "2"]
SETTINGS = ["--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"]
TRANSLATE = ROOT / "examples" / "translate.py"
TEXTS = some_texts(150, seed=7)
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("_reset_accelerate")]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    return tmp_path / "out.txt"


@pytest.fixture
def arguments(translator_folder: Path, tmp_path: Path, output: Path) -> list[Any]:
    (tmp_path / "in.txt").write_text("\n".join(TEXTS) + "\n")
    files = ["--input", tmp_path / "in.txt", "--output", output]
    return ["--model", translator_folder, *files, "--num_beams", 1, "--chunk_size", 3]


@pytest.fixture
def finish(arguments: list[Any], output: Path, translator: Any, tokenizer: Any) -> Callable[[], None]:
    """Continue in one process, and check the output."""

    def finish() -> None:
        process = start_imported(TRANSLATE, *arguments)
        process.join(1200)
        assert process.exitcode == 0
        assert output.read_bytes() == b"".join(encode_lines(translate(TEXTS, translator, tokenizer, num_beams=1)))
        assert sorted(path.name for path in output.parent.iterdir()) == ["in.txt", "out.txt"]

    return finish


def wait_for_parts(output: Path, more: int, process: BaseProcess) -> None:
    """Wait for this number of additional parts."""
    before = count_parts(output)
    while count_parts(output) < before + more:
        assert process.exitcode is None
        time.sleep(0.005)


def count_parts(output: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        return sum(path.suffix == ".txt" for path in output.with_name(f"{output.name}.parts").iterdir())
    return 0


@pytest.mark.parametrize("processes", [TWO, ["--cpu", "--num_processes", "2"]], ids=["two", "--cpu"])
def test_processes_exit_with_a_killed_launcher(
    arguments: list[Any], output: Path, finish: Callable[[], None], processes: list[str]
) -> None:
    """One process continues."""
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = ["launch", *processes, *SETTINGS, TRANSLATE, *arguments]
    process = start_imported(LAUNCHER, *command, environment={**os.environ, **environment})
    wait_for_parts(output, 3, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.join()
    _, alive = psutil.wait_procs(children, timeout=WAIT_LIMIT)
    assert children
    assert not alive
    assert not output.exists()
    finish()
