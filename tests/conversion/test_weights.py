"""`StateDictMapper` and its name tables."""

import pytest
import torch

from modeling_random_transformer.conversion.weights import StateDictMapper

NAMES = {
    "{stack}.layers.{i}.{attention}.in_proj_{p}": "model.{stack}.layers.{i}.{attention}.{qkv}_proj.{p}",
    "encoder.layers.{i}.norm2.{p}": "model.encoder.layers.{i}.final_layer_norm.{p}",
}


def test_rename_applies_patterns_and_keeps_other_weights():
    fused, norm = torch.arange(6.0), torch.ones(2)
    weights = {"decoder.layers.10.self_attn.in_proj_bias": fused, "encoder.layers.0.norm2.weight": norm}
    unmatched = {"decoder.layers.0.norm2.weight", "encoder.layers.x.norm2.weight", "encoder.layers.0.norm2.weight_v"}
    mapper = StateDictMapper("source", {**weights, **dict.fromkeys(unmatched, torch.ones(2))})
    mapper.rename(NAMES)
    parts = [f"model.decoder.layers.10.self_attn.{part}_proj.bias" for part in "qkv"]
    assert set(mapper.state_dict) == {*parts, "model.encoder.layers.0.final_layer_norm.weight"}
    assert torch.equal(torch.cat([mapper.state_dict[name] for name in parts]), fused)
    assert set(mapper.remaining) == unmatched
    assert [weight.how for weight in mapper.report.mapped] == ["split"] * 3 + ["copied"]
    norm.zero_()  # weights are copied
    assert mapper.state_dict["model.encoder.layers.0.final_layer_norm.weight"].tolist() == [1, 1]
    # the names of missing parameters
    missing = "model.encoder.layers.3.self_attn.v_proj.weight"
    assert mapper.source_name(missing) == "encoder.layers.3.self_attn.in_proj_weight"
    assert mapper.source_name("lm_head.weight") == "lm_head.weight"


def test_rows_that_cannot_be_split():
    mapper = StateDictMapper("source", {"encoder.layers.0.self_attn.in_proj_bias": torch.ones(4)})
    with pytest.raises(ValueError, match=r"in_proj_bias of source must have a multiple of 3 rows, got \[4\]"):
        mapper.rename(NAMES)
