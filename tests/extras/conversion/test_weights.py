"""The mapper of state dicts: each weight is used once, or is named in an error."""

import pytest
import torch

from modeling_random_transformer.extras.conversion.weights import StateDictMapper, compile_pattern, problem_of


def test_names_with_placeholders():
    pattern = compile_pattern("{stack}.layers.{i}.fc1.{p}")
    assert pattern.fullmatch("encoder.layers.12.fc1.bias").groupdict() == {"stack": "encoder", "i": "12", "p": "bias"}
    for name in ("encoder.layers.x.fc1.bias", "embedding.layers.1.fc1.bias", "encoder_layers.1.fc1.bias"):
        assert pattern.fullmatch(name) is None


def test_the_first_pattern_applies_and_layers_are_counted_from_zero():
    weights = {"enc.layer1.w": torch.ones(2), "enc.layer2.w": torch.zeros(2), "other": torch.ones(1)}
    mapper = StateDictMapper("original", weights)
    mapper.rename({"enc.layer{number}.w": "model.encoder.layers.{i}.fc1.weight", "enc.layer2.w": "never"})
    assert {name: weight.tolist() for name, weight in mapper.state_dict.items()} == {
        "model.encoder.layers.0.fc1.weight": [1, 1],
        "model.encoder.layers.1.fc1.weight": [0, 0],
    }
    assert list(mapper.remaining) == ["other"]
    assert mapper.source_name("model.encoder.layers.1.fc1.weight") == "enc.layer2.w"


def test_rows_of_queries_keys_and_values_are_split():
    mapper = StateDictMapper("original", {"in_proj": torch.arange(6.0).view(6, 1)})
    mapper.rename({"in_proj": "self_attn.{qkv}_proj.weight"})
    rows = {name: weight.flatten().tolist() for name, weight in mapper.state_dict.items()}
    assert rows == {
        "self_attn.q_proj.weight": [0, 1],
        "self_attn.k_proj.weight": [2, 3],
        "self_attn.v_proj.weight": [4, 5],
    }
    assert {mapped.how for mapped in mapper.report.mapped} == {"split"}


@pytest.mark.parametrize("shape", [(), (4, 2)])
def test_rows_that_cannot_be_split_evenly(shape):
    mapper = StateDictMapper("original", {"in_proj": torch.zeros(shape)})
    with pytest.raises(ValueError, match="in_proj of original must have a multiple of 3 rows"):
        mapper.rename({"in_proj": "self_attn.{qkv}_proj.weight"})


def test_converted_weights_do_not_share_memory_with_the_original():
    weight = torch.ones(2)
    mapper = StateDictMapper("original", {"w": weight})
    mapper.set("target", mapper.pop("w"), "w")
    weight.zero_()
    assert mapper.state_dict["target"].tolist() == [1, 1]


def test_missing_weights_and_wrong_dimensions():
    mapper = StateDictMapper("original", {"w": torch.ones(2)})
    with pytest.raises(ValueError, match="original must contain the weight 'x', which is missing"):
        mapper.pop("x")
    with pytest.raises(ValueError, match=r"w of original must have 2 dimensions, got \[2\]"):
        mapper.peek("w", dims=2)
    with pytest.raises(ValueError, match=r"must contain weights under 'encoder\.layers\.', got none"):
        mapper.count_layers("encoder.layers.")


@pytest.mark.parametrize(
    ("weight", "problem"),
    [
        (torch.ones(2, 3), ""),
        (torch.ones(2, dtype=torch.bfloat16), ""),
        (torch.ones(2, dtype=torch.int8), "one of torch.int8"),
        (torch.ones(2, 2).to_sparse(), "one of layout torch.sparse_coo"),
        (torch.ones(2, device="meta"), "one on the meta device, without values"),
        (torch.ones(1).expand(5), "one expanded to [5]"),
        (torch.tensor([1.0, float("nan")]), "one with values that are infinite or not a number"),
        (torch.tensor([float("inf")]), "one with values that are infinite or not a number"),
    ],
)
def test_tensors_that_are_not_weights(weight, problem):
    assert problem_of(weight) == problem
