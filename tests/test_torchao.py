"""int8 and int4 quantization with torchao, through `from_pretrained(quantization_config=…)`."""

import pytest
import torch
from torch import nn
from torchao.prototype.quantization.int4 import PrototypeInt4WeightOnlyConfig
from torchao.quantization import Int8Tensor, Int8WeightOnlyConfig
from transformers import AutoModelForSeq2SeqLM, TorchAoConfig

from tests.helpers.models import assert_near, assert_same_generation, fixed_scores, padded_batch, random_ids, tiny_model

SIZES = {"d_model": 64, "d_ff": 128, "num_heads": 2}
INPUTS = {**padded_batch([8, 5, 3]), "decoder_input_ids": random_ids(3, 6, seed=1)}
# torchao's int4 for CPUs computes in bfloat16 and is a prototype.
CONFIGS = {
    "int8": (Int8WeightOnlyConfig(), torch.float32, 0.02),
    "int8 in bfloat16": (Int8WeightOnlyConfig(), torch.bfloat16, 0.03),
    "int4": (PrototypeInt4WeightOnlyConfig(group_size=32), torch.bfloat16, 0.25),
}


@pytest.fixture
def folder(tmp_path):
    tiny_model(**SIZES).save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def load(folder, config, dtype=torch.float32):
    return AutoModelForSeq2SeqLM.from_pretrained(folder, quantization_config=TorchAoConfig(config), dtype=dtype)


def logits(model):
    with torch.no_grad():
        return model(**INPUTS).logits.float()


@pytest.mark.parametrize("name", CONFIGS)
def test_quantized_models_have_a_bounded_error(name, folder):
    """All linear layers but the tied output layer are quantized. The fast decoder calls torchao's layers."""
    config, dtype, max_error = CONFIGS[name]
    model = load(folder, config, dtype)
    layers = {name: module.weight for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert [name for name, weight in layers.items() if type(weight) is nn.Parameter] == ["lm_head"]
    assert model.lm_head.weight is model.model.shared.weight
    exact = logits(AutoModelForSeq2SeqLM.from_pretrained(folder))
    assert 0 < (logits(model) - exact).std() < max_error * exact.std()
    sources, options = padded_batch([8, 5, 3]), {"return_dict_in_generate": True, "output_logits": True}
    cached, uncached = (
        model.generate(
            **sources, **options, max_new_tokens=12, num_beams=4, use_cache=cache, logits_processor=[fixed_scores]
        )
        for cache in (True, False)
    )
    assert_same_generation(cached, uncached, 1e-4 if dtype == torch.float32 else 2**-4)


def test_save_and_load(folder, tmp_path):
    model = load(folder, Int8WeightOnlyConfig())
    model.save_pretrained(tmp_path / "int8")
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path / "int8")
    assert isinstance(again.model.encoder.layers[0].fc1.weight, Int8Tensor)
    assert_near(logits(again), logits(model), 1e-5)
