"""The example of a task of one's own: its data, and complete runs in one and in two processes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import your_own_task
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "your_own_task.py"
ONE_STEP = ["--max_steps", "1", "--save_strategy", "no"]
WITHOUT_THE_PACKAGE = """
import sys
sys.modules["modeling_random_transformer"] = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
outputs = model.generate(**tokenizer(["4217", "18"], padding=True, return_tensors="pt"), num_beams=4, max_new_tokens=16)
print(tokenizer.batch_decode(outputs, skip_special_tokens=True))
"""


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (0, "zero"),
        (18, "eighteen"),
        (40, "forty"),
        (99, "ninety nine"),
        (100, "one hundred"),
        (4217, "four thousand two hundred seventeen"),
        (9000, "nine thousand"),
    ],
)
def test_numbers_in_words(number, words):
    assert your_own_task.in_words(number) == words
    tokenizer = your_own_task.make_tokenizer()
    assert tokenizer.decode(tokenizer(words).input_ids, skip_special_tokens=True) == words
    assert tokenizer.unk_token_id not in tokenizer(f"{number} {words}").input_ids
    assert len(tokenizer(str(number)).input_ids) == len(str(number)) + 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--lora"]], ids=["all weights", "LoRA"])
def test_a_saved_folder_is_trained_further(options, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    your_own_task.main(["--output_dir", str(first), *ONE_STEP])
    your_own_task.main(["--output_dir", str(second), "--model", str(first), *options, *ONE_STEP])
    assert (second / ("adapter_config.json" if options else "config.json")).is_file()
    assert AutoTokenizer.from_pretrained(second)("12").input_ids == your_own_task.make_tokenizer()("12").input_ids


@pytest.mark.long
def test_default_run(tmp_path, capsys):
    """The figures of docs/how_to/your_own_task.md, and the folder without this package."""
    metrics = your_own_task.main(["--output_dir", str(tmp_path)])
    assert metrics["eval_exact_match"] >= 0.95
    assert "4 beams: ['four thousand two hundred seventeen']" in capsys.readouterr().out
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""}
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(tmp_path)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert output.strip() == "['four thousand two hundred seventeen', 'eighteen']"


@pytest.mark.long
def test_two_processes_and_their_warnings(tmp_path):
    program = shutil.which("accelerate", path=str(Path(sys.executable).parent))
    command = [program, "launch", "--cpu", "--num_processes", "2", SCRIPT, "--output_dir", tmp_path, *ONE_STEP]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.count("exact match of 200 held-out numbers") == 1
    assert "Warning" not in ended.stderr
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).config.d_model == 64
