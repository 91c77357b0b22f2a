"""Loading of saved models: what is checked, and errors of one line that name the file."""

import errno
import json
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from torch import nn

from modeling_random_transformer.base.saved_files import TRAINING_RECORD
from modeling_random_transformer.inference.loading import check_finite, check_path, load_models, load_translator


@pytest.fixture
def folder(translator_folder, tmp_path):
    """A copy of a saved model."""
    for file in translator_folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


def change(file, **values):
    content = json.loads(file.read_text())
    file.write_text(json.dumps(content | values))


def test_a_model_and_its_tokenizer(translator_folder):
    model, tokenizer = load_models([translator_folder])
    assert not model.training
    assert len(tokenizer) <= model.config.vocab_size
    assert tokenizer.model_max_length <= model.config.max_position_embeddings
    assert load_translator(translator_folder, "bfloat16")[0].dtype == torch.bfloat16


@pytest.mark.parametrize("device", ["meta", "gpu"])
def test_devices_without_values(device, translator_folder):
    with pytest.raises(ValueError, match=f"device must be an available device, got {device}"):
        load_models([translator_folder], device=device)


DAMAGES = {
    "config.json must be a JSON file, but it is missing": lambda folder: (folder / "config.json").unlink(),
    "config.json must be a JSON file, but it is damaged": lambda folder: (folder / "config.json").write_text("{"),
    "the folder must be that of the model, not of its export, got one with model.bin": lambda folder: (
        folder / "model.safetensors"
    ).rename(folder / "model.bin"),
    "not of its export, got one with encoder.onnx": lambda folder: (folder / "model.safetensors").rename(
        folder / "encoder.onnx"
    ),
    "the training in this folder must be complete: repeat its command": lambda folder: (folder / "config.json").rename(
        folder / TRAINING_RECORD
    ),
    "config.json: model_type must be an architecture of transformers, got 'other'": lambda folder: change(
        folder / "config.json", model_type="other"
    ),
    r"must have the shape \[8\] of config.json": lambda folder: change(folder / "config.json", d_ff=8),
    "model.safetensors": lambda folder: (folder / "model.safetensors").write_bytes(b"x"),
    "generation_config.json: eos_token_id must be a token id or several, got 'x'": lambda folder: change(
        folder / "generation_config.json", eos_token_id="x"
    ),
    "tokenizer.json must be a file of the folder, but it is missing": lambda folder: [
        (folder / name).unlink() for name in ("tokenizer.json", "tokenizer_config.json")
    ],
    "tokenizer.json or tokenizer_config.json": lambda folder: (folder / "tokenizer.json").write_text("{"),
}


@pytest.mark.parametrize("folders", [[], "model", Path("model")], ids=repr)
def test_folders_are_a_list(folders):
    with pytest.raises(ValueError, match=r"folders must be a list of one or more folders, got "):
        load_models(folders)


@pytest.mark.parametrize("message", DAMAGES)
def test_damaged_folders(message, folder):
    DAMAGES[message](folder)
    with pytest.raises(ValueError, match=message) as error:
        load_translator(folder)
    assert str(folder) in str(error.value)
    assert "\n" not in str(error.value)


def test_weights_that_cannot_be_read_are_not_reported_as_missing(folder, monkeypatch):
    original = Path.open

    def open_others(path, *arguments, **options):
        if path.name == "model.safetensors":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return original(path, *arguments, **options)

    monkeypatch.setattr(Path, "open", open_others)  # without permissions, the user root could read it
    with pytest.raises(ValueError, match=r"model\.safetensors: \[Errno 13\] Permission denied"):
        load_translator(folder)


def test_weights_are_finite():
    model = nn.Module()
    model.lm_head = nn.Linear(2, 2)
    nn.init.constant_(model.lm_head.bias, -torch.inf)
    check_finite(model)
    nn.init.constant_(model.lm_head.bias, torch.inf)
    with pytest.raises(FloatingPointError, match=r"lm_head\.bias contains NaN or infinity"):
        check_finite(model)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"device": "nowhere"}, "device must be an available device, got nowhere"),
        ({"dtype": "int3"}, "dtype"),
        ({"engine_dtype": "int8"}, r"engine must be given with engine_dtype, got None\."),
    ],
)
def test_invalid_arguments_of_loading(options, message, translator_folder):
    with pytest.raises(ValueError, match=message):
        load_models([translator_folder], **options)


def test_a_name_on_the_hub_beside_a_folder_of_its_organization(tmp_path, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "alice").mkdir()
    with pytest.raises(ValueError, match=r"tokenizer must be a path that exists, or a name on the Hub, got 'alice/de'"):
        check_path("tokenizer", "alice/de")
    repository = tmp_path / "cache" / "models--alice--de"
    for path, content in (("refs/main", "0"), ("snapshots/0/config.json", "{}")):
        (repository / path).parent.mkdir(parents=True)
        (repository / path).write_text(content)
    check_path("tokenizer", "alice/de")
