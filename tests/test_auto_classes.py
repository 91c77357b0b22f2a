"""Loading with transformers' Auto classes, by the package and by remote code."""

import ast
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
from transformers.dynamic_module_utils import get_relative_import_files

import modeling_random_transformer as package
from modeling_random_transformer.configuration_random_transformer import MODEL_CLASSES
from tests.helpers.models import tiny_model

FILES = (
    *("configuration", "decoding", "generation", "inputs", "modeling", "ops", "pipeline"),
    *("quantization", "snapshot", "tokenization", "verification", "versions"),
)
SAVED_CODE = {f"{name}_random_transformer.py" for name in FILES}
CONFIGURATION = Path(package.__file__).parent / "configuration_random_transformer.py"
TEXT = "¿Dónde  está\tmi 🐈?"


def test_every_auto_class_loads_a_saved_folder(translator_folder):
    assert type(AutoConfig.from_pretrained(translator_folder)) is package.RandomTransformerConfig
    assert type(AutoTokenizer.from_pretrained(translator_folder)) is package.RandomTransformerTokenizer
    assert type(AutoModel.from_pretrained(translator_folder)) is package.RandomTransformerModel
    model = AutoModelForSeq2SeqLM.from_pretrained(translator_folder)
    assert type(model) is package.RandomTransformerForConditionalGeneration
    assert type(AutoModelForSeq2SeqLM.from_config(model.config)) is type(model)


def test_files_of_a_saved_folder(translator_folder):
    data = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert {path.name for path in translator_folder.iterdir()} == data | SAVED_CODE


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("tie", [True, False])
def test_tied_weights_are_stored_once(share, tie, tmp_path):
    tiny_model(share_embeddings=share, tie_word_embeddings=tie).save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        stored = {name for name in file.keys() if "embed_tokens" in name or "shared" in name or "lm_head" in name}  # noqa: SIM118
    stacks = {"model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}
    expected = {"model.shared.weight"} if share else stacks
    assert stored == expected | (set() if tie else {"lm_head.weight"})
    loaded = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert (loaded.model.encoder.embed_tokens.weight is loaded.model.decoder.embed_tokens.weight) == share
    assert (loaded.lm_head.weight is loaded.model.decoder.embed_tokens.weight) == tie


BLOCK_PACKAGE = """
import json, sys
import transformers

class BlockPackage:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "modeling_random_transformer":
            raise ImportError(f"{name} is not installed here")

sys.meta_path.insert(0, BlockPackage())
from transformers import AutoConfig, AutoModel, AutoModelForSeq2SeqLM, AutoTokenizer, pipeline
"""
WITHOUT_THE_PACKAGE = """
text, *folders, last = sys.argv[1:]
HEADS = [name for name in AutoConfig.from_pretrained(folders[0], trust_remote_code=True).auto_map if "For" in name]
options = {"trust_remote_code": True}
results = []
for folder, copy in zip(folders, [*folders[1:], last]):
    config = AutoConfig.from_pretrained(folder, **options)
    tokenizer = AutoTokenizer.from_pretrained(folder, **options)
    model = AutoModelForSeq2SeqLM.from_pretrained(folder, **options)
    base = AutoModel.from_pretrained(folder, **options)
    pipe = pipeline("seq2seq", folder, device="cpu", **options)
    inputs = tokenizer(text, return_tensors="pt")
    results.append({
        "classes": [type(x).__name__ for x in (config, tokenizer, model, base, pipe)],
        "modules": [type(x).__module__.split(".")[0] for x in (config, tokenizer, model, base, pipe)],
        "ids": inputs.input_ids[0].tolist(),
        "text": tokenizer.decode(inputs.input_ids[0], skip_special_tokens=True),
        "loss": model(**inputs, labels=inputs.input_ids).loss.item(),
        "beams": model.generate(**inputs, num_beams=3, max_new_tokens=8)[0].tolist(),
        "answers": pipe([text, "</s> a"], max_new_tokens=6, num_beams=2, batch_size=2),
        "fallback": model.fallback_reason(),
        "heads": [type(getattr(transformers, name).from_pretrained(folder, **options)).__name__ for name in HEADS],
    })
    pipe.save_pretrained(copy)
print(json.dumps(results))
"""
# The changed files among those that the objects of each folder use.
TWO_FOLDERS = """
options = {"trust_remote_code": True}
results = []
for folder in sys.argv[1:]:
    pipe = pipeline("seq2seq", folder, device="cpu", **options)
    config = AutoConfig.from_pretrained(folder, **options)
    objects = (pipe, pipe.model, pipe.tokenizer, config)
    packages = {type(used).__module__.rpartition(".")[0] + "." for used in objects}
    modules = [module for name, module in sys.modules.items() if name.startswith(tuple(packages))]
    results.append(sorted({module.CHANGED for module in modules if hasattr(module, "CHANGED")}))
print(json.dumps(results))
"""


def run_without_the_package(code, cache, *args):
    """Run the code in another process, in which the package cannot be imported; returns what it prints."""
    cache.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", BLOCK_PACKAGE + code, *map(str, args)],
        cwd=cache,
        env={"HF_MODULES_CACHE": str(cache), "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_remote_code_without_the_package(translator_folder, tmp_path):
    """A model and a pipeline loaded by remote code can be saved, and loaded again both ways."""
    pipe = pipeline("seq2seq", str(translator_folder), device="cpu")
    folder, copy = tmp_path / "saved", tmp_path / "copy"
    pipe.save_pretrained(folder)
    args = (TEXT, folder, copy, tmp_path / "copy of copy")
    result, again = run_without_the_package(WITHOUT_THE_PACKAGE, tmp_path / "modules", *args)
    assert again == result
    assert result["classes"] == [
        "RandomTransformerConfig",
        "RandomTransformerTokenizer",
        "RandomTransformerForConditionalGeneration",
        "RandomTransformerModel",
        "Seq2SeqPipeline",
    ]
    assert set(result["modules"]) == {"transformers_modules"}
    assert set(result["heads"]) == set(MODEL_CLASSES.values()) - {"RandomTransformerModel"}
    assert result["fallback"] is None
    assert result["text"] == TEXT
    assert result["answers"] == pipe([TEXT, "</s> a"], max_new_tokens=6, num_beams=2)
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForSeq2SeqLM.from_pretrained(folder)
    inputs = tokenizer(TEXT, return_tensors="pt")
    assert result["ids"] == inputs.input_ids[0].tolist()
    assert result["loss"] == pytest.approx(model(**inputs, labels=inputs.input_ids).loss.item(), rel=1e-6)
    assert result["beams"] == model.generate(**inputs, num_beams=3, max_new_tokens=8)[0].tolist()
    assert type(AutoModel.from_pretrained(copy)) is package.RandomTransformerModel


@pytest.mark.long
def test_folders_of_one_name_run_their_own_code(translator_folder, tmp_path):
    """transformers selects a model's code by the class of its configuration, whose copy is named by a digest."""
    folders = [tmp_path / "original" / "model", *(tmp_path / name / "model" for name in sorted(SAVED_CODE))]
    pipeline("seq2seq", str(translator_folder), device="cpu").save_pretrained(folders[0])
    for folder in folders[1:]:
        shutil.copytree(folders[0], folder)
        with (folder / folder.parent.name).open("a") as file:
            file.write(f"\nCHANGED = {folder.parent.name!r}\n")
    changed = run_without_the_package(TWO_FOLDERS, tmp_path / "modules", *folders)
    assert changed == [[], *([name] for name in sorted(SAVED_CODE))]


def test_the_configuration_names_all_saved_code():
    """transformers searches its text: for the files to copy, and for the digest that names the copy."""
    names = {Path(path).name for path in get_relative_import_files(CONFIGURATION)}
    assert names | {CONFIGURATION.name} == SAVED_CODE


@pytest.mark.parametrize("name", sorted(SAVED_CODE))
def test_saved_code_imports_no_other_packages(name):
    for node in ast.walk(ast.parse((Path(package.__file__).parent / name).read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            assert f"{node.module}.py" in SAVED_CODE
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            importable = {"torch", "transformers", "tokenizers", *sys.stdlib_module_names}
            assert {name.split(".")[0] for name in names} <= importable
