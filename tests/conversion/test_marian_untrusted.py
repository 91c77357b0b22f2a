"""Folders of Marian models that refer to code, refer to files outside the folder, or are damaged."""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import save_file
from transformers import AutoTokenizer, MarianMTModel

from modeling_random_transformer.conversion import convert_marian
from tests.helpers.conversion import check_refused
from tests.helpers.marian import opus_folder

NESTED = '{"a":' * 100_000


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("marian") / "opus"
    opus_folder(folder)
    return folder


@pytest.fixture
def folder(original, tmp_path):
    return Path(shutil.copytree(original, tmp_path / "opus"))


def add_to(path: Path, **entries):
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **entries}))


def test_unknown_tokenizer_settings_are_not_copied(folder, tmp_path):
    settings = {
        "auto_map": {"AutoTokenizer": ["tokenization_evil.Evil", None]},
        "trust_remote_code": True,
        "special_tokens_map_file": "/etc/passwd",
        "name_or_path": "somewhere/else",
        "sp_model_kwargs": {"nbest_size": 0, "model_file": "/etc/passwd"},
        "model_max_length": 77,
    }
    add_to(folder / "tokenizer_config.json", **settings)
    add_to(folder / "special_tokens_map.json", eos_token="</s>", auto_map={"AutoTokenizer": "evil.Evil"})
    report = convert_marian(folder, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert written == {
        "source_lang": "en",
        "target_lang": "es",
        "sp_model_kwargs": {"nbest_size": 0},
        "model_max_length": 77,
        "tokenizer_class": "MarianTokenizer",
    }
    assert json.loads((tmp_path / "out" / "special_tokens_map.json").read_text()) == {"eos_token": "</s>"}
    assert any("auto_map" in note for note in report.notes)
    assert AutoTokenizer.from_pretrained(tmp_path / "out").model_max_length == 77


def test_unknown_generation_options_are_not_copied(folder, tmp_path):
    add_to(folder / "generation_config.json", auto_map={"a": "b"}, custom_generate="evil/evil", num_beams=3)
    convert_marian(folder, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert not {"auto_map", "custom_generate"} & written.keys()
    assert written["num_beams"] == 3


@pytest.mark.parametrize("shard", ["../shard.safetensors", "{}/shard.safetensors", "..", "a\\b", 3, None])
def test_shard_outside_of_the_folder(folder, tmp_path, shard):
    weights = MarianMTModel.from_pretrained(folder).state_dict()
    (folder / "model.safetensors").unlink()
    save_file({name: tensor.clone() for name, tensor in weights.items()}, tmp_path / "shard.safetensors")
    shard = shard.format(tmp_path) if isinstance(shard, str) else shard
    index = {"metadata": {}, "weight_map": dict.fromkeys(weights, shard)}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    message = "^weight_map in .*index.json must name files in the same folder, got "
    check_refused(message, tmp_path, convert_marian, folder, tmp_path / "out")


def test_shards_in_the_folder(folder, tmp_path):
    MarianMTModel.from_pretrained(folder).save_pretrained(folder, max_shard_size="20kB")
    assert (folder / "model.safetensors.index.json").is_file()
    convert_marian(folder, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "entry"),
    [("config.json", {"transformers_weights": "../x.safetensors"}), ("adapter_config.json", {"a": 1})],
)
def test_other_references_outside_of_the_folder(folder, tmp_path, name, entry):
    add_to(folder / name, **entry)
    with pytest.raises(ValueError, match=r"transformers_weights in .* must be null|must contain a full model"):
        convert_marian(folder, tmp_path / "out")


@pytest.mark.parametrize(
    "name",
    [
        "config.json",
        "tokenizer_config.json",
        "vocab.json",
        "special_tokens_map.json",
        "model.safetensors.index.json",
        "generation_config.json",
    ],
)
def test_deeply_nested_json_is_one_line_error(folder, tmp_path, name):
    (folder / name).write_text(NESTED)
    check_refused(".", tmp_path, convert_marian, folder, tmp_path / "out")
