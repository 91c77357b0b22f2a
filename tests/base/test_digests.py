"""Digests that tell whether an interrupted job has the same files and the same model."""

import hashlib

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from tokenizers import normalizers
from tokenizers.pre_tokenizers import ByteLevel

from modeling_random_transformer import RandomTransformerForConditionalGeneration
from modeling_random_transformer.base.digests import file_digest, model_digest
from tests.helpers.models import tiny_model
from tests.helpers.translation import random_tokenizer


def test_digest_of_a_file(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"abc")
    assert file_digest(path) == f"3 bytes, sha256 {hashlib.sha256(b'abc').hexdigest()}"


@pytest.fixture
def tokenizer():
    return random_tokenizer()


def test_a_loaded_copy_has_the_same_digest(tokenizer, tmp_path):
    model = tiny_model(vocab_size=len(tokenizer))
    model.save_pretrained(tmp_path)
    copy = RandomTransformerForConditionalGeneration.from_pretrained(tmp_path)
    copy.config.transformers_version = "4.0"
    assert model_digest(copy, tokenizer) == model_digest(model, tokenizer)


def change_weight(model):
    with torch.no_grad():
        model.model.encoder.layers[0].fc1.weight[0, 0] += 1


# By name: changes of a model or its tokenizer. Those of the tokenizer leave the vocabulary as it is, except for a new
# token, but a translation that is resumed would have lines of two kinds.
CHANGES = {
    "weight": lambda model, _: change_weight(model),
    "dtype": lambda model, _: model.double(),
    "configuration": lambda model, _: setattr(model.config, "dropout", 0.5),
    "generation": lambda model, _: setattr(model.generation_config, "length_penalty", 2.0),
    "token": lambda _, tokenizer: tokenizer.add_tokens("<new>"),
    "normalizer": lambda _, tokenizer: setattr(tokenizer.backend_tokenizer, "normalizer", normalizers.Lowercase()),
    "parts of a text": lambda _, tokenizer: setattr(tokenizer.backend_tokenizer, "pre_tokenizer", ByteLevel()),
    "merges": lambda _, tokenizer: setattr(tokenizer.backend_tokenizer.model, "ignore_merges", True),
    "line breaks": lambda _, tokenizer: setattr(tokenizer, "keep_line_breaks", True),
    "texts without letters": lambda _, tokenizer: setattr(tokenizer, "keep_without_letters", False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_each_change_changes_the_digest(change, tokenizer):
    model = tiny_model(vocab_size=len(tokenizer))
    before = model_digest(model, tokenizer)
    CHANGES[change](model, tokenizer)
    assert model_digest(model, tokenizer) != before


def change_scale(model):
    model.base_model.model.model.encoder.layers[0].self_attn.q_proj.set_scale("first", 9)


ADAPTER_CHANGES = {
    "another adapter": lambda model: model.set_adapter("second"),
    "no adapter": lambda model: model.base_model.disable_adapter_layers(),
    "another scale": change_scale,
}


@pytest.mark.parametrize("change", ADAPTER_CHANGES)
def test_another_active_adapter_changes_the_digest(change, tokenizer):
    """Which adapter is active is not in the weights."""
    model = get_peft_model(tiny_model(vocab_size=len(tokenizer)), LoraConfig(), adapter_name="first")
    model.add_adapter("second", LoraConfig())
    before = model_digest(model, tokenizer)
    assert model_digest(model, tokenizer) == before
    ADAPTER_CHANGES[change](model)
    assert model_digest(model, tokenizer) != before


def test_another_active_prompt_changes_the_digest(tokenizer):
    config = PromptTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=2)
    model = get_peft_model(tiny_model(vocab_size=len(tokenizer)), config, adapter_name="first")
    model.add_adapter("second", config)
    before = model_digest(model, tokenizer)
    model.set_adapter("second")
    assert model_digest(model, tokenizer) != before


def test_tokenizing_a_text_does_not_change_the_digest(tokenizer):
    model = tiny_model(vocab_size=len(tokenizer))
    before = model_digest(model, tokenizer)
    tokenizer(["a cat", "a red house"], padding=True, truncation=True, max_length=4)
    assert model_digest(model, tokenizer) == before
