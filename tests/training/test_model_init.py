"""Fine-tuning a saved model: all weights, or a LoRA adapter."""

import json
import re
import shutil

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
from transformers.utils import ADAPTER_SAFE_WEIGHTS_NAME

from modeling_random_transformer.training import (
    TranslationTrainer,
    TranslationTrainingArguments,
    average_weights,
    load_average,
)
from modeling_random_transformer.training.checkpoints import all_checkpoints
from modeling_random_transformer.training.model_init import freeze
from tests.helpers.models import tiny_model
from tests.helpers.training import STEPS, UNSCORED, assert_equal_weights, run

SAVED = {"config_overrides": "", "vocab_size": None}  # the architecture of the saved model
LORA = {**SAVED, "lora_rank": 2}


@pytest.fixture(scope="module")
def adapter(finished, tmp_path_factory):
    """A finished LoRA run, whose base model was given by a path relative to the working directory."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(finished)
        folder = tmp_path_factory.mktemp("lora") / "adapter"
        return run(finished, folder, model_name_or_path="out", **LORA, lora_alpha=8, lora_dropout=0.1)


def fine_tune(finished, output, **options):
    return run(finished, output, **{"model_name_or_path": str(finished / "out"), **SAVED, **options})


@torch.no_grad()
def logits(model):
    ids = torch.tensor([[5, 6, 7]])
    return model.eval()(input_ids=ids, decoder_input_ids=ids).logits


def load(folder):
    return AutoModelForSeq2SeqLM.from_pretrained(folder)


def test_fine_tuning_starts_from_the_saved_weights(finished, tmp_path):
    options = {"average_last": 1, "max_steps": 2, **UNSCORED}
    still = fine_tune(finished, tmp_path / "still", learning_rate=1e-12, **options)
    torch.testing.assert_close(logits(load(still.folder)), logits(load(finished / "out")))
    moved = fine_tune(finished, tmp_path / "moved", config_overrides="dropout=0.0", learning_rate=0.1, **options)
    assert load(moved.folder).config.dropout == 0.0
    assert not torch.allclose(logits(load(moved.folder)), logits(load(finished / "out")), atol=1e-2)
    assert moved.trained == moved.parameters
    card = (moved.folder / "README.md").read_text()
    assert f"`out`, {moved.parameters:,} parameters, fine-tuned on 120" in card


@pytest.mark.parametrize(
    ("parts", "frozen"),
    [
        ("encoder", r"model\.encoder\."),
        ("encoder,shared", r"model\.encoder\.|shared"),  # embeddings and output layer are tied
        ("decoder.layers.0.fc1, k_proj.weight", r"decoder\.layers\.0\.fc1\.|k_proj\.weight"),
    ],
)
def test_frozen_parameters_keep_their_values(parts, frozen, finished, tmp_path):
    tuned = fine_tune(finished, tmp_path / "out", freeze=parts, max_steps=2, **UNSCORED)
    before, after = (load_file(folder / "model.safetensors") for folder in (finished / "out", tuned.folder))
    for name, weights in before.items():
        if not name.endswith("k_proj.bias"):  # which changes nothing: its gradient is rounding
            assert torch.equal(weights, after[name]) is bool(re.search(frozen, name)), name
    assert 0 < tuned.trained < tuned.parameters
    assert f"fine-tuned with frozen `{parts}` on 120 pairs" in (tuned.folder / "README.md").read_text()


@pytest.mark.parametrize("parts", ["encodr", "encoder,missing", "model", "encoder.layer", "lm_head", "("])
def test_parts_of_no_or_of_all_parameters_are_an_error_before_the_corpus_is_read(parts, finished, tmp_path):
    message = "freeze must be parts of some parameter names, such as 'encoder,shared', got"
    with pytest.raises(ValueError, match=message):
        fine_tune(finished, tmp_path / "out", freeze=parts)
    assert not (tmp_path / "out").exists()


def test_the_optimizer_has_no_frozen_parameters():
    model = tiny_model()
    freeze(model, "encoder")
    args = TranslationTrainingArguments(output_dir="unused", use_cpu=True, muon=True)
    for muon in (True, False):
        args.muon = muon
        optimizer = TranslationTrainer(model, args).create_optimizer()
        optimized = {weight for group in optimizer.param_groups for weight in group["params"]}
        assert optimized == {weight for weight in model.parameters() if weight.requires_grad}


def test_greedy_evaluation_of_a_model_with_options_of_beam_search(finished, tmp_path):
    penalized = tmp_path / "penalized"
    shutil.copytree(finished / "out", penalized)
    model = load(penalized)
    model.generation_config.update(num_beams=4, length_penalty=0.6, early_stopping=True)
    model.save_pretrained(penalized)
    result = fine_tune(
        finished, tmp_path / "out", model_name_or_path=str(penalized), num_beams=1, max_steps=2, **UNSCORED
    )
    saved = load(result.folder).generation_config
    assert (saved.num_beams, saved.length_penalty, saved.early_stopping) == (1, None, None)


def test_half_precision_is_trained_in_float32(finished, tmp_path):
    half = tmp_path / "half"
    load(finished / "out").bfloat16().save_pretrained(half)
    AutoTokenizer.from_pretrained(finished / "out").save_pretrained(half)
    result = fine_tune(finished, tmp_path / "out", model_name_or_path=str(half), max_steps=2, **UNSCORED)
    assert {weight.dtype for weight in load_file(result.folder / "model.safetensors").values()} == {torch.float32}


def test_a_lora_run_writes_a_scored_adapter(finished, adapter, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the adapter finds its base model from any working directory
    assert adapter.steps == STEPS
    assert 0 < adapter.trained < adapter.parameters / 20
    assert not (adapter.folder / "model.safetensors").exists()
    card = (adapter.folder / "README.md").read_text()
    assert f"A LoRA adapter (rank 2, {adapter.trained:,} parameters) of `out`" in card
    assert str(finished) not in card
    assert "library_name: peft" in card
    # The folder is complete, and the saved adapter is the mean of the last checkpoints.
    model, tokenizer = load(adapter.folder), AutoTokenizer.from_pretrained(adapter.folder)
    assert tokenizer.decode(model.generate(**tokenizer("abc", return_tensors="pt"))[0]).startswith("<s>")
    assert not torch.equal(logits(model), logits(load(finished / "out")))
    saved = load_file(adapter.folder / ADAPTER_SAFE_WEIGHTS_NAME)
    torch.testing.assert_close(saved, average_weights(all_checkpoints(adapter.folder)), rtol=0, atol=0)
    base = PeftModel.from_pretrained(load(finished / "out"), adapter.folder)
    with base.disable_adapter():
        torch.testing.assert_close(logits(base), logits(load(finished / "out")), rtol=0, atol=0)
    options = json.loads((adapter.folder / "adapter_config.json").read_text())
    assert (options["r"], options["lora_alpha"], options["lora_dropout"]) == (2, 8, 0.1)


def test_an_adapter_that_is_scored_again_has_no_generation_config(finished, tmp_path):
    options = {**LORA, "max_steps": 1, "model_name_or_path": str(finished / "out")}
    for beams in (1, 2):
        result = run(finished, tmp_path / "out", **options, num_beams=beams)
    assert not (result.folder / "generation_config.json").exists()  # that of the base model


def test_a_lora_run_resumes(finished, tmp_path):
    options = {**LORA, "lora_dropout": 0.1, "average_last": 1, "r_drop_alpha": 1.0, **UNSCORED}
    whole = fine_tune(finished, tmp_path / "whole", **options, max_steps=4)
    fine_tune(finished, tmp_path / "parts", **options, max_steps=2)
    parts = fine_tune(finished, tmp_path / "parts", **options, max_steps=4)
    assert parts.steps == 4
    assert_equal_weights(parts.folder, whole.folder, ADAPTER_SAFE_WEIGHTS_NAME)


def test_r_drop_requires_dropout_of_the_model_or_of_its_adapter(finished, tmp_path):
    options = {**LORA, "r_drop_alpha": 1.0, "config_overrides": "dropout=0.0", **UNSCORED}
    with pytest.raises(ValueError, match=r"r_drop_alpha must be 0 for a model without dropout, got 1\.0"):
        fine_tune(finished, tmp_path / "out", **options)
    assert fine_tune(finished, tmp_path / "out", **options, lora_dropout=0.1, max_steps=1).steps == 1


def test_a_fine_tuning_resumes_after_its_base_model_was_scored_again(finished, tmp_path):
    base = shutil.copytree(finished / "out", tmp_path / "base")
    options = {"model_name_or_path": str(base), "average_last": 1}
    fine_tune(finished, tmp_path / "out", **options, max_steps=2)
    (base / "training_manifest.json").write_text("{}")
    assert fine_tune(finished, tmp_path / "out", **options, max_steps=4).steps == 4
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"dropout": 0.5}))
    with pytest.raises(ValueError, match=r"other values .*model_name_or_path"):
        fine_tune(finished, tmp_path / "out", **options, max_steps=6)


def test_averaging_other_checkpoints_raises(finished, adapter):
    model = get_peft_model(load(finished / "out"), LoraConfig(task_type="SEQ_2_SEQ_LM", target_modules=["fc1"]))
    with pytest.raises(ValueError, match=r"checkpoints must match the model, .*, which has unexpected"):
        load_average(model, all_checkpoints(adapter.folder))
    with pytest.raises(ValueError, match="at least one folder"):
        average_weights([])


def test_a_base_model_inside_the_output_raises(finished):
    before = (finished / "out" / "model.safetensors").read_bytes()
    with pytest.raises(ValueError, match="output_dir must differ from model_name_or_path and not contain it"):
        run(finished, "out", **LORA, model_name_or_path=str(finished / "out" / f"checkpoint-{STEPS}"))
    assert (finished / "out" / "model.safetensors").read_bytes() == before


MISSING = "model.encoder.layers.0.fc1.bias"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"quantization_config": {"quant_method": "torchao"}}, "must contain unquantized weights"),
        ({"model_type": "bert"}, "must contain a model of type 'random_transformer', got '.*base' of type 'bert'"),
        ({"vocab_size": 279}, "tokenizer must match the model's vocab_size=279, got 280 tokens"),
        ({}, f"must contain all weights, got .* without {MISSING}"),
    ],
)
def test_another_configuration_or_incomplete_weights_raise(changed, message, finished, tmp_path):
    folder = shutil.copytree(finished / "out", tmp_path / "base")
    config, weights = folder / "config.json", load_file(folder / "model.safetensors")
    config.write_text(json.dumps(json.loads(config.read_text()) | changed))
    weights.pop(MISSING)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=message):
        fine_tune(finished, tmp_path / "out", model_name_or_path=str(folder))


def test_a_folder_without_a_full_model_raises(finished, adapter, tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", adapter.folder):
        with pytest.raises(ValueError, match=f"must contain a full model without an adapter, got '{folder}'"):
            fine_tune(finished, tmp_path / "out", model_name_or_path=str(folder))


def test_adapted_modules_are_checked_before_the_corpus_is_read(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("modeling_random_transformer.training.preparation.load_pairs", None)
    with pytest.raises(ValueError, match=r"lora_target_modules must be .*, got 'lm_head', a tied one"):
        fine_tune(finished, tmp_path / "out", **LORA, lora_target_modules="lm_head")


def test_lora_without_peft_raises(finished, tmp_path, monkeypatch):
    monkeypatch.setattr("modeling_random_transformer.training.checks.is_peft_available", lambda: False)
    with pytest.raises(ValueError, match=r"lora_rank=2 requires peft: pip install 'random-transformer\[adapters\]'"):
        fine_tune(finished, tmp_path / "out", **LORA)
