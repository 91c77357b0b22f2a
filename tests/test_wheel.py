"""What a new user does: install the wheel in an empty environment, without constraints, and translate a sentence."""

import subprocess
import sys
import venv
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
TRANSLATE = """
import sys
from transformers import pipeline
import modeling_random_transformer, transformers, torch

translator = pipeline("seq2seq", sys.argv[1], device="cpu")
print(transformers.__version__, torch.__version__)
for beams in (1, 4):
    print(translator(sys.argv[2], num_beams=beams)["generated_text"])
"""


def run(*command) -> str:
    process = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    assert process.returncode == 0, process.stderr
    return process.stdout


@pytest.mark.long
def test_wheel_in_an_empty_environment(quickstart_folder, tmp_path):
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT)
    [wheel] = tmp_path.glob("*.whl")
    venv.create(tmp_path / "env", with_pip=True)
    python = tmp_path / "env" / "bin" / "python"
    # The build of torch without CUDA, as README.md advises. Everything else is the newest release that pip finds.
    run(python, "-m", "pip", "install", "--quiet", f"torch=={torch.__version__.partition('+')[0]}")
    run(python, "-m", "pip", "install", "--quiet", wheel)
    sentence, expected = "My sister buys the green apples.", "Mi hermana compra las manzanas verdes."
    versions, *translations = run(python, "-c", TRANSLATE, quickstart_folder, sentence).splitlines()
    assert translations == [expected, expected], versions
    command = tmp_path / "env" / "bin" / "random-transformer"
    assert run(command, "translate", "--model", quickstart_folder, sentence).strip() == expected
