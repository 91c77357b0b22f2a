"""Fine-tuning a saved model: all weights, or a LoRA adapter."""

import json
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.training import (
    ModelArguments,
    TranslationTrainingArguments,
    average_weights,
    load_average,
)
from modeling_random_transformer.training.checkpoints import ADAPTER, all_checkpoints
from modeling_random_transformer.training.model_init import check_arguments
from tests.helpers.training import STEPS, run

SAVED = {"config_overrides": "", "vocab_size": None}  # the architecture of the saved model
LORA = {**SAVED, "lora_rank": 2}


@pytest.fixture(scope="module")
def corpus(finished):
    """A folder with a corpus and, in `out`, a model trained on it."""
    return finished


@pytest.fixture(scope="module")
def adapter(corpus, tmp_path_factory):
    """A finished LoRA run, whose base model was given by a path relative to the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(corpus)
        folder = tmp_path_factory.mktemp("lora") / "adapter"
        return run(corpus, folder, model_name_or_path="out", **LORA, lora_alpha=8, lora_dropout=0.1)


def fine_tune(corpus, output, **options):
    return run(corpus, output, **{"model_name_or_path": str(corpus / "out"), **SAVED, **options})


def logits(model):
    ids = torch.tensor([[5, 6, 7]])
    with torch.no_grad():
        return model.eval()(input_ids=ids, decoder_input_ids=ids).logits


def load(folder):
    return AutoModelForSeq2SeqLM.from_pretrained(folder)


def test_fine_tuning_starts_from_the_saved_weights(corpus, tmp_path):
    options = {"average_last": 1, "max_steps": 2, "test_source_file": None, "test_target_file": None}
    still = fine_tune(corpus, tmp_path / "still", learning_rate=1e-12, **options)
    torch.testing.assert_close(logits(load(still.folder)), logits(load(corpus / "out")))
    moved = fine_tune(corpus, tmp_path / "moved", config_overrides="dropout=0.0", learning_rate=0.1, **options)
    assert load(moved.folder).config.dropout == 0.0
    assert not torch.allclose(logits(load(moved.folder)), logits(load(corpus / "out")), atol=1e-2)
    assert moved.trained == moved.parameters
    card = (moved.folder / "README.md").read_text()
    assert f"`out`, {moved.parameters:,} parameters, fine-tuned on 120" in card


def test_half_precision_is_trained_in_float32(corpus, tmp_path):
    half = tmp_path / "half"
    load(corpus / "out").bfloat16().save_pretrained(half)
    AutoTokenizer.from_pretrained(corpus / "out").save_pretrained(half)
    result = run(corpus, tmp_path / "out", model_name_or_path=str(half), **SAVED, max_steps=2)
    assert {weight.dtype for weight in load_file(result.folder / "model.safetensors").values()} == {torch.float32}


def test_a_lora_run_writes_a_scored_adapter(corpus, adapter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the adapter finds its base model from any working directory
    assert adapter.steps == STEPS
    assert 0 < adapter.trained < adapter.parameters / 20
    assert not (adapter.folder / "model.safetensors").exists()
    card = (adapter.folder / "README.md").read_text()
    assert f"A LoRA adapter (rank 2, {adapter.trained:,} parameters) of `out`" in card
    assert str(corpus) not in card
    assert "library_name: peft" in card
    # The folder is complete, and the saved adapter is the mean of the last checkpoints.
    model, tokenizer = load(adapter.folder), AutoTokenizer.from_pretrained(adapter.folder)
    assert tokenizer.decode(model.generate(**tokenizer("abc", return_tensors="pt"))[0]).startswith("<s>")
    assert not torch.equal(logits(model), logits(load(corpus / "out")))
    mean = average_weights(all_checkpoints(adapter.folder))
    for name, weight in load_file(adapter.folder / ADAPTER).items():
        torch.testing.assert_close(weight, mean[name], rtol=0, atol=0)
    base = PeftModel.from_pretrained(load(corpus / "out"), adapter.folder)
    with base.disable_adapter():
        torch.testing.assert_close(logits(base), logits(load(corpus / "out")), rtol=0, atol=0)
    options = json.loads((adapter.folder / "adapter_config.json").read_text())
    assert (options["r"], options["lora_alpha"], options["lora_dropout"]) == (2, 8, 0.1)


def test_a_lora_run_resumes(corpus, tmp_path):
    options = {**LORA, "lora_dropout": 0.1, "ema_decay": 0.9, "average_last": 1, "r_drop_alpha": 1.0}
    options |= {"test_source_file": None, "test_target_file": None}
    whole = fine_tune(corpus, tmp_path / "whole", **options, max_steps=4)
    fine_tune(corpus, tmp_path / "parts", **options, max_steps=2)
    parts = fine_tune(corpus, tmp_path / "parts", **options, max_steps=4)
    assert parts.steps == 4
    for name, weight in load_file(parts.folder / ADAPTER).items():
        torch.testing.assert_close(weight, load_file(whole.folder / ADAPTER)[name], rtol=0, atol=0)


def test_a_fine_tuning_resumes_after_its_base_model_was_scored_again(corpus, tmp_path):
    base = shutil.copytree(corpus / "out", tmp_path / "base")
    options = {"model_name_or_path": str(base), "average_last": 1}
    fine_tune(corpus, tmp_path / "out", **options, max_steps=2)
    (base / "training_manifest.json").write_text("{}")
    assert fine_tune(corpus, tmp_path / "out", **options, max_steps=4).steps == 4
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"dropout": 0.5}))
    with pytest.raises(ValueError, match=r"other values .*model_name_or_path"):
        fine_tune(corpus, tmp_path / "out", **options, max_steps=6)


def test_averaging_other_checkpoints_raises(corpus, adapter):
    model = get_peft_model(load(corpus / "out"), LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["fc1"]))
    with pytest.raises(ValueError, match=r"checkpoints must match the model, .*, which has unexpected"):
        load_average(model, all_checkpoints(adapter.folder))
    with pytest.raises(ValueError, match="at least one folder"):
        average_weights([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lora_rank": 4}, r"lora_rank requires model_name_or_path \(the base model\), got 4 without it"),
        ({"lora_target_modules": "fc1"}, "lora_target_modules must be unset without lora_rank, got 'fc1'"),
        ({"model_name_or_path": "m", "lora_rank": 2, "lora_alpha": 0}, "lora_alpha must be at least 1, got 0"),
        ({"model_name_or_path": "m", "tokenizer": "t"}, "tokenizer must be unset with model_name_or_path.*got 't'"),
        ({"model_name_or_path": "m", "config_overrides": "d_model=8"}, "config_overrides must be of .*, got d_model"),
    ],
)
def test_invalid_arguments_raise(options, message):
    with pytest.raises(ValueError, match=message):
        ModelArguments(**options)


def test_a_base_model_inside_the_output_raises(corpus):
    before = (corpus / "out" / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="output_dir must differ from model_name_or_path and not contain it"):
        run(corpus, "out", **LORA, model_name_or_path=str(corpus / "out" / f"checkpoint-{STEPS}"))
    assert (corpus / "out" / "model.safetensors").read_bytes() == before


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"quantization_config": {"quant_method": "torchao"}}, "must contain unquantized weights"),
        ({"model_type": "bert"}, "must contain a model of type 'random_transformer', got '.*base' of type 'bert'"),
        ({"vocab_size": 279}, "tokenizer must match the model's vocab_size=279, got 280 tokens"),
    ],
)
def test_another_configuration_raises(changed, message, corpus, tmp_path):
    folder = shutil.copytree(corpus / "out", tmp_path / "base")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changed))
    with pytest.raises(ValueError, match=message):
        run(corpus, tmp_path / "out", model_name_or_path=str(folder), **SAVED)


def test_incomplete_weights_raise(corpus, tmp_path):
    folder = shutil.copytree(corpus / "out", tmp_path / "base")
    weights = load_file(folder / "model.safetensors")
    weights.pop("model.encoder.layers.0.fc1.bias")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"must contain all weights, got .* without model.encoder.layers.0.fc1.bias"):
        run(corpus, tmp_path / "out", model_name_or_path=str(folder), **SAVED)


def test_a_folder_without_a_full_model_raises(corpus, adapter, tmp_path):
    with pytest.raises(ValueError, match=r"must contain a full model without an adapter, got '.*nowhere'"):
        run(corpus, tmp_path / "out", model_name_or_path=str(tmp_path / "nowhere"), **SAVED)
    with pytest.raises(ValueError, match="must contain a full model without an adapter"):
        run(corpus, tmp_path / "out", model_name_or_path=str(adapter.folder), **SAVED)


def test_lora_without_peft_raises(corpus, tmp_path, monkeypatch):
    monkeypatch.setattr("modeling_random_transformer.training.model_init.is_peft_available", lambda: False)
    with pytest.raises(ValueError, match=r"lora_rank=2 requires peft: pip install 'random-transformer\[adapters\]'"):
        fine_tune(corpus, tmp_path / "out", **LORA)


def test_lora_with_sharded_weights_raises(corpus, tmp_path):
    recipe = TranslationTrainingArguments(output_dir=str(tmp_path / "out"), use_cpu=True)
    recipe.tp_size = 2
    with pytest.raises(ValueError, match=r"lora_rank must be unset with tp_size .*, got 2\."):
        check_arguments(ModelArguments(model_name_or_path=str(corpus / "out"), lora_rank=2), recipe)
