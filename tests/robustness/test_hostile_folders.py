"""Model folders of unknown origin: no code that their files name is run, and no question reads the texts."""

import ast
import re
from pathlib import Path

import pytest
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

import modeling_random_transformer as package
from modeling_random_transformer import cli
from modeling_random_transformer.extras.conversion import convert_marian
from modeling_random_transformer.inference.loading import load_translator, read_saved_model
from tests.helpers.hostile import EVIL_MAP, TRACE, hostile
from tests.helpers.marian import opus_folder
from tests.helpers.models import save_translator

TEXT = "the dog sees a cat"
KERNELS = ["attacker/kernel", "attacker/kernel:attend", "flash_attention_3", {"": "attacker/kernel"}]
EVIL_PIPELINE = {"impl": "evil.Evil", "pt": ["AutoModelForSeq2SeqLM"], "type": "text"}
# Changes of a file that must have no effect, and those that must be errors.
IGNORED = [
    *(("config.json", {name: value}) for name in ("attn_implementation", "_attn_implementation") for value in KERNELS),
    ("config.json", {"_attn_implementation_internal": "attacker/kernel"}),
    ("config.json", {"attributes": {"attn_implementation": "attacker/kernel"}}),
    ("config.json", {"use_kernels": True, "kernel_config": {"LayerNorm": "attacker/kernel:LayerNorm"}}),
    ("config.json", {"auto_map": EVIL_MAP, "trust_remote_code": True}),
    ("config.json", {"custom_pipelines": {"seq2seq": EVIL_PIPELINE}, "trust_remote_code": True}),
    ("generation_config.json", {"custom_generate": "attacker/search", "trust_remote_code": True}),
    ("tokenizer_config.json", {"auto_map": EVIL_MAP, "trust_remote_code": True}),
]
REJECTED = [
    {"model_type": "evil", "auto_map": EVIL_MAP, "trust_remote_code": True},
    {
        "model_type": "encoder-decoder",
        "encoder": {"model_type": "evil", "auto_map": EVIL_MAP, "trust_remote_code": True},
        "decoder": {"model_type": "bert", "auto_map": {"AutoModelForCausalLM": "evil.Evil"}},
    },
]


@pytest.fixture(autouse=True)
def no_questions(monkeypatch):
    """transformers asks whether it may run code; the answer would be the first line of the texts."""
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("a question was asked"))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "model"
    save_translator(folder)
    return folder


def by_auto_classes(folder):
    AutoConfig.from_pretrained(folder, trust_remote_code=False)
    AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    return AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=False)


def by_class(folder):
    return package.RandomTransformerForConditionalGeneration.from_pretrained(folder)


def by_pipeline(folder):
    return pipeline("seq2seq", str(folder), device="cpu", trust_remote_code=False).model


def by_command(folder):
    assert cli.main(["translate", "--model", str(folder), TEXT]) == 0


WAYS = [by_auto_classes, by_class, by_pipeline, lambda folder: load_translator(folder)[0], by_command]


@pytest.mark.parametrize("way", WAYS, ids=["Auto classes", "class", "pipeline", "load_translator", "translate"])
@pytest.mark.parametrize(("file", "changes"), IGNORED)
def test_code_that_a_file_names_is_not_run(file, changes, way, saved, tmp_path):
    """The names of kernels would be errors here, since the package that downloads them is not installed."""
    folder = hostile(saved, tmp_path / "folder", file, changes)
    model = way(folder)
    assert model is None or model.config._attn_implementation == "sdpa"
    assert not (folder / TRACE).exists()


@pytest.mark.parametrize("way", [by_auto_classes, by_pipeline, load_translator])
@pytest.mark.parametrize("changes", REJECTED)
def test_unknown_architecture_with_code(changes, way, saved, tmp_path):
    folder = hostile(saved, tmp_path / "folder", "config.json", changes)
    with pytest.raises((ValueError, KeyError)):
        way(folder)
    assert not (folder / TRACE).exists()


@pytest.mark.parametrize("name", ["attn_implementation", "_attn_implementation"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_models_of_transformers(name, kernel, tmp_path):
    """MarianMT reads the implementation from its file, so converter and commands replace it."""
    opus_folder(tmp_path / "opus")
    folder = hostile(tmp_path / "opus", tmp_path / "folder", "config.json", {name: kernel})
    convert_marian(folder, tmp_path / "out")
    assert read_saved_model(folder, "float32").config._attn_implementation == "sdpa"


def calls_of(path: Path) -> list[ast.Call]:
    return [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]


def test_auto_classes_are_called_without_remote_code():
    """Otherwise they ask on the terminal, or take the answer from the texts on stdin."""
    calls = [call for path in Path(package.__file__).parent.rglob("*.py") for call in calls_of(path)]
    automatic = [
        call for call in calls if re.fullmatch(r"(transformers\.)?Auto\w+\.from_pretrained", ast.unparse(call.func))
    ]
    assert automatic
    for call in automatic:
        assert any(word.arg == "trust_remote_code" and word.value.value is False for word in call.keywords), call.lineno
