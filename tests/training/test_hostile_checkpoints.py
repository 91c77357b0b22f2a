"""Tokenizers, models and checkpoints of unknown origin in training: none of their files runs code."""

import json
import pickle
import shutil
from contextlib import nullcontext

import pytest
import torch

from modeling_random_transformer.training.checkpoints import all_checkpoints
from tests.helpers.hostile import EVIL_MAP, TRACE, Evil, hostile
from tests.helpers.training import STEPS, run


@pytest.mark.parametrize(
    ("argument", "file", "changes"),
    [
        ("tokenizer", "tokenizer_config.json", {"tokenizer_class": "EvilTokenizer"}),
        ("model_name_or_path", "config.json", {"model_type": "evil"}),
    ],
)
def test_a_folder_that_names_code_is_an_error(argument, file, changes, finished, tmp_path, monkeypatch):
    """Without a class of transformers, the Auto classes would ask, and read the answer from stdin."""
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    folder = hostile(finished / "out", tmp_path / "folder", file, {"auto_map": EVIL_MAP, **changes})
    options = {argument: str(folder), "vocab_size": None, "max_steps": 1}
    if argument == "tokenizer":
        (folder / "config.json").unlink()
    else:
        options["config_overrides"] = ""
    with pytest.raises(ValueError, match=f"{argument} must .* custom code"):
        run(finished, tmp_path / "out", **options)
    assert not (folder / TRACE).exists()


@pytest.mark.parametrize("file", ["rng_state.pth", "optimizer.pt", "scheduler.pt", "training_args.bin"])
@pytest.mark.parametrize("write", [torch.save, lambda value, path: path.write_bytes(pickle.dumps(value))])
def test_code_in_the_files_of_a_checkpoint_is_not_run(file, write, finished, tmp_path):
    """transformers reads training_args.bin in no case."""
    output = shutil.copytree(finished / "out", tmp_path / "out")
    checkpoint = all_checkpoints(output)[-1]
    write({"state": Evil(tmp_path / TRACE)}, checkpoint / file)
    marker = json.loads((checkpoint / "complete.json").read_text())
    marker["files"][file] = (checkpoint / file).stat().st_size
    (checkpoint / "complete.json").write_text(json.dumps(marker))
    expected = (
        nullcontext() if file == "training_args.bin" else pytest.raises(ValueError, match="resume_from_checkpoint")
    )
    with expected:
        run(finished, output, max_steps=STEPS + 1)
    assert not (tmp_path / TRACE).exists()
