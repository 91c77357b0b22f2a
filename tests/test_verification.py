"""The comparison of `generate()` with definitions and with a pass without a cache, and how long it holds."""

import pytest
import torch
from transformers import GenerationConfig

from modeling_random_transformer import verification_random_transformer as verification
from modeling_random_transformer.verification_random_transformer import (
    INEXACT_ROUNDING,
    VERIFIED,
    rounding,
    verify_transformers,
)
from tests.helpers.models import exact_model, padded_batch, tiny_model

BATCH = padded_batch([8, 5, 3])
SEARCHES = {"greedy": {}, "beams": {"num_beams": 3}, "static cache": {"cache_implementation": "static"}}


def generated(model, search):
    return model.generate(**BATCH, max_new_tokens=8, do_sample=False, disable_compile=True, **SEARCHES[search])


@pytest.mark.parametrize("search", SEARCHES)
def test_each_model_object_is_verified_once(search, monkeypatch):
    model = exact_model(spread=2.0)
    passes = []
    without_cache = type(model).logits_without_cache

    def counted(self, *args, **kwargs):
        passes.append(args)
        return without_cache(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "logits_without_cache", counted)
    for _ in range(2):
        generated(model, search)
    assert len(passes) == len(VERIFIED[model]) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_default_device_and_data_type_have_no_effect(dtype):
    original = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device("meta"):
            verify_transformers()
    finally:
        torch.set_default_dtype(original)


def test_generation_config_can_be_positional():
    model = exact_model(spread=2.0)
    config = GenerationConfig(num_beams=3, max_new_tokens=8, decoder_start_token_id=1, eos_token_id=2, pad_token_id=0)
    outputs = model.generate(BATCH["input_ids"], config, attention_mask=BATCH["attention_mask"])
    assert torch.equal(outputs, generated(exact_model(spread=2.0), "beams"))
    assert all(kind.endswith("beam search") for kind in VERIFIED[model])


def test_rounding_of_products_is_no_error(monkeypatch):
    """TF32 and bfloat16 products, and exported graphs, whose weights may be quantized."""
    logits = torch.zeros(1, 5)
    model = tiny_model()
    assert rounding(model, logits) is None
    for precisions in (("tf32", "none"), ("ieee", "bf16")):
        monkeypatch.setattr(verification, "float32_precisions", lambda chosen=precisions: chosen)
        assert rounding(model, logits) == INEXACT_ROUNDING
    monkeypatch.undo()
    monkeypatch.setattr(model, "parameters", list)
    assert rounding(model, logits) == INEXACT_ROUNDING
    assert rounding(tiny_model().to(torch.bfloat16), logits) == INEXACT_ROUNDING
