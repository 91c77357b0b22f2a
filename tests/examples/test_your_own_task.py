"""The example of a task of one's own: its tokenizer, complete runs, and the LoRA lines of its guide."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import transformers
import your_own_task
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "your_own_task.py"
GUIDE = ROOT / "docs" / "how_to" / "your_own_task.md"
ONE_STEP = ["--max_steps", "1", "--save_strategy", "no"]
WITHOUT_THE_PACKAGE = """
import sys
sys.modules["modeling_random_transformer"] = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained(sys.argv[1], trust_remote_code=True)
inputs = tokenizer(["17 March 1984", "17.03.84"], padding=True, return_tensors="pt")
print(tokenizer.batch_decode(model.generate(**inputs, num_beams=4, max_new_tokens=16), skip_special_tokens=True))
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A model after one step."""
    folder = tmp_path_factory.mktemp("dates")
    your_own_task.main(["--output_dir", str(folder), *ONE_STEP])
    return folder


def test_tokenizer_ends_texts_and_decodes_them_again():
    tokenizer = your_own_task.make_tokenizer(["17 March 1984", "1984-03-17"])
    for text in ("17 March 1984", "1984-03-17"):
        ids = tokenizer(text).input_ids
        assert ids[-1] == tokenizer.eos_token_id == 2
        assert tokenizer.decode(ids, skip_special_tokens=True) == text


@pytest.mark.slow
def test_saved_folder_loads(saved):
    tokenizer = AutoTokenizer.from_pretrained(saved)
    model = AutoModelForSeq2SeqLM.from_pretrained(saved)
    assert model.config.vocab_size == len(tokenizer)
    assert (saved / "modeling_random_transformer.py").is_file()
    special = (tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id)
    assert special == (model.config.pad_token_id, model.config.decoder_start_token_id, model.config.eos_token_id)


@pytest.mark.slow
def test_lora_lines_of_the_guide_train_an_adapter(saved, tmp_path):
    lines = re.search(r"```python\n(from peft.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)[1]
    lines = lines.replace("outputs/dates", str(saved)).replace("\n", "\n    ")
    code = SCRIPT.read_text(encoding="utf-8").replace("    trainer = ", f"    {lines}\n    trainer = ")
    namespace = {"__name__": "adapted", "AutoModelForSeq2SeqLM": AutoModelForSeq2SeqLM}
    exec(code, namespace)
    namespace["main"](["--output_dir", str(tmp_path), *ONE_STEP])
    assert (tmp_path / "adapter_config.json").is_file()
    assert not (tmp_path / "config.json").is_file()


@pytest.mark.slow
def test_push_to_hub_uploads_the_saved_folder_once(tmp_path, monkeypatch):
    uploads = []
    trainer = transformers.Seq2SeqTrainer
    monkeypatch.setattr(trainer, "init_hf_repo", lambda *_, **__: None)
    monkeypatch.setattr(trainer, "push_to_hub", lambda self, **_: uploads.append(set(os.listdir(self.args.output_dir))))
    your_own_task.main(["--output_dir", str(tmp_path), "--push_to_hub", "true", *ONE_STEP])
    assert len(uploads) == 1
    assert {"model.safetensors", "modeling_random_transformer.py", "tokenizer.json"} <= uploads[0]


@pytest.mark.long
def test_default_run(tmp_path, capsys):
    """The figures of docs/how_to/your_own_task.md, and the folder without this package."""
    your_own_task.main(["--output_dir", str(tmp_path)])
    assert float(re.search(r"eval_exact_match +=\s+(\S+)", capsys.readouterr().out)[1]) >= 0.95
    environment = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""}
    command = [sys.executable, "-c", WITHOUT_THE_PACKAGE, str(tmp_path)]
    output = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, cwd=tmp_path).stdout
    assert output.strip() == "['1984-03-17', '1984-03-17']"


@pytest.mark.long
def test_two_processes_and_their_warnings(tmp_path):
    program = shutil.which("accelerate", path=str(Path(sys.executable).parent))
    command = [program, "launch", "--cpu", "--num_processes", "2", SCRIPT, "--output_dir", tmp_path, *ONE_STEP]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    ended = subprocess.run(list(map(str, command)), env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.count("eval_exact_match") == 1
    assert "Warning" not in ended.stderr
    assert AutoModelForSeq2SeqLM.from_pretrained(tmp_path).config.d_model == 64
