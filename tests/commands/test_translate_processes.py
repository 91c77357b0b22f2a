"""The processes of a launcher that translate a file, and what is left when they are killed."""

import contextlib
import os
import time
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


def wait_for_parts(folder: Path, count: int, process: BaseProcess) -> None:
    written = 0
    while written < count:
        assert process.exitcode is None
        time.sleep(0.005)
        with contextlib.suppress(FileNotFoundError):
            written = sum(path.suffix == ".txt" for path in folder.iterdir())


@pytest.mark.long
@pytest.mark.usefixtures("_reset_accelerate")
@pytest.mark.parametrize("processes", [TWO, ["--cpu", "--num_processes", "2"]], ids=["two", "--cpu"])
def test_processes_exit_with_a_killed_launcher(
    processes: list[str], translator: Any, tokenizer: Any, translator_folder: Path, tmp_path: Path
) -> None:
    """One process continues."""
    source, output = tmp_path / "in.txt", tmp_path / "out.txt"
    source.write_text("\n".join(TEXTS) + "\n")
    arguments = [
        "--model",
        translator_folder,
        "--input",
        source,
        "--output",
        output,
        "--num_beams",
        1,
        "--chunk_size",
        3,
    ]
    environment = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    command = ["launch", *processes, *SETTINGS, TRANSLATE, *arguments]
    process = start_imported(LAUNCHER, *command, environment={**os.environ, **environment})
    wait_for_parts(tmp_path / "out.txt.parts", 3, process)
    children = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.join()
    _, alive = psutil.wait_procs(children, timeout=WAIT_LIMIT)
    assert children
    assert not alive
    assert not output.exists()
    process = start_imported(TRANSLATE, *arguments)
    process.join(1200)
    assert process.exitcode == 0
    assert output.read_bytes() == b"".join(encode_lines(translate(TEXTS, translator, tokenizer, num_beams=1)))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt"]
