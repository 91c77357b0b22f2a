"""fairseq checkpoints with invalid options, weights or code: each raises a one-line error that names the cause."""

import math
import os

import pytest
import torch

from modeling_random_transformer.conversion import convert_fairseq, from_fairseq, from_torch_transformer
from tests.helpers.conversion import Call, check_refused
from tests.helpers.fairseq import checkpoint

FC1, TABLE = "encoder.layers.0.fc1.weight", "encoder.embed_tokens.weight"


@pytest.mark.parametrize("content", [{}, {"args": 1}, {"model": 3}], ids=repr)
def test_checkpoint_of_another_format(content):
    with pytest.raises(ValueError, match=r"^the fairseq checkpoint must be a fairseq checkpoint with [^\n]+\.$"):
        from_fairseq(content)


@pytest.mark.parametrize("value", [["relu"], {"relu": 1}, 3], ids=repr)
def test_activation_of_wrong_type(value):
    content = checkpoint()
    content["args"].activation_fn = value
    with pytest.raises(ValueError, match=r"^activation_fn must be one of relu, [^\n]+\.$"):
        from_fairseq(content)


@pytest.mark.parametrize(
    ("arch", "layout"),
    [("transformer_unidirectional", "args"), ("nonautoregressive_transformer", "cfg"), (["transformer"], "nested")],
    ids=repr,
)
def test_other_architectures_with_the_same_weights(arch, layout):
    """transformer_unidirectional has a causal mask in the encoder."""
    with pytest.raises(ValueError, match=r"^arch must be one of transformer, [^\n]+, got [^\n]+\.$"):
        from_fairseq(checkpoint(layout, arch=arch))
    with pytest.raises(ValueError, match=r"^arch must be one of transformer, "):
        from_fairseq(checkpoint(layout, arch=None, _name=arch))
    from_fairseq(checkpoint(layout, arch=None, _name="transformer_align"))


@pytest.mark.parametrize(
    ("end", "value"),
    [("target", 0), *(("source", value) for value in (math.inf, math.nan, 1e12, 10**12, "x", [1], -5, 0.5, True))],
)
def test_invalid_number_of_positions(end, value):
    content = checkpoint()
    setattr(content["args"], f"max_{end}_positions", value)
    with pytest.raises(ValueError, match=rf"^max_{end}_positions must be an integer from 1 to 1048576, got [^\n]+\.$"):
        from_fairseq(content)


@pytest.mark.parametrize("name", ["attention_dropout", "encoder_attention_heads", "share_all_embeddings"])
def test_tensor_as_option(name):
    content = checkpoint()
    setattr(content["args"], name, torch.ones(2))
    with pytest.raises(ValueError, match=rf"^{name} must be a plain value, got a tensor of shape \[2\]\.$"):
        from_fairseq(content)


@pytest.mark.parametrize("name", [3, (1, 2), None, b"encoder"], ids=repr)
def test_weight_name_that_is_not_a_string(name):
    content = checkpoint()
    content["model"][name] = torch.ones(2)
    with pytest.raises(ValueError, match=r"^'model' of the fairseq checkpoint must be a state dict"):
        from_fairseq(content)
    with pytest.raises(ValueError, match=r"^transformer must be an nn.Transformer or a state dict"):
        from_torch_transformer({name: torch.ones(2)}, torch.ones(2, 2), num_heads=1)


def quantized(weight):
    return torch._empty_affine_quantized(weight.shape, scale=0.1, zero_point=0, dtype=torch.qint8)


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize("name", [FC1, TABLE])
@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda weight: weight.to_sparse(), "layout torch.sparse_coo"),
        (quantized, "torch.qint8"),
        (lambda weight: weight.to("meta"), "the meta device"),
        (lambda weight: weight.int(), "torch.int32"),
        (lambda weight: weight.to(torch.complex64), "torch.complex64"),
        (lambda weight: weight.to(torch.float8_e4m3fn), "torch.float8_e4m3fn"),
        (lambda weight: weight[:1].expand(2**33, *weight.shape[1:]), r"expanded to \[8589934592"),
        (lambda weight: weight.sum(), r"\[\]"),
    ],
    ids=["sparse", "quantized", "meta", "integers", "complex", "float8", "expanded", "no dimensions"],
)
def test_weight_that_is_not_a_dense_float_tensor(name, change, found):
    content = checkpoint()
    content["model"][name] = change(content["model"][name])
    with pytest.raises(ValueError, match=rf"^{name} of the fairseq checkpoint must [^\n]*{found}"):
        from_fairseq(content)


def test_scalar_embedding_with_dictionary(tmp_path):
    content = checkpoint()
    content["model"][TABLE] = torch.tensor(1.0)
    torch.save(content, tmp_path / "c.pt")
    (tmp_path / "dict.txt").write_text("".join(f"w{i} 1\n" for i in range(25)))
    files = {"checkpoint": tmp_path / "c.pt", "output": tmp_path / "out", "source_dict": tmp_path / "dict.txt"}
    check_refused(rf"{TABLE} of .* must have 2 dimensions, got \[\]", tmp_path, convert_fairseq, **files)


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("call", "name"),
    [
        (Call(exec, "1"), "builtins.exec"),
        (Call(os.system, "touch ran"), "posix.system"),
        (Call(open, "ran", "w"), "open"),
    ],
)
def test_code_in_checkpoint_is_named_and_not_executed(call, name, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({**checkpoint(), "extra": call}, tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    check_refused(
        f"contains .*{name}, which is not allowed", tmp_path, convert_fairseq, tmp_path / "c.pt", tmp_path / "out"
    )
