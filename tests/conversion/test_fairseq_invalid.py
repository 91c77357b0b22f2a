"""fairseq checkpoints and dictionaries that are not supported: each raises a one-line error that names the cause."""

import math
import os

import pytest
import torch

from modeling_random_transformer.conversion import convert_fairseq, fairseq_tokenizer, from_fairseq
from tests.helpers.conversion import Call, check_refused
from tests.helpers.fairseq import (
    SOURCE_TOKENS,
    checkpoint,
    folder_with_two_dictionaries,
    words,
    write_dictionary,
)

FC1, TABLE = "encoder.layers.0.fc1.weight", "encoder.embed_tokens.weight"
POSITIONS = "must be an integer from 1 to 1048576, got "


@pytest.fixture
def content():
    return checkpoint()


@pytest.mark.parametrize("content", [{}, {"args": 1}, {"model": 3}], ids=repr)
def test_checkpoint_of_another_format(content):
    with pytest.raises(ValueError, match=r"^the fairseq checkpoint must be a fairseq checkpoint with [^\n]+\.$"):
        from_fairseq(content)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layernorm_embedding": True}, "layernorm_embedding must be off, got True"),
        ({"adaptive_softmax_cutoff": "10,20"}, "adaptive_softmax_cutoff must be off"),
        ({"encoder_add_adapters": True}, "encoder_add_adapters must be off"),
        ({"decoder_embed_dim": 32}, "decoder_embed_dim must be encoder_embed_dim=16, got 32"),
        ({"decoder_normalize_before": True}, "decoder_normalize_before must be encoder_normalize_before=False"),
        ({"decoder_output_dim": 8}, "decoder_output_dim must be decoder_embed_dim=16"),
        ({"activation_fn": "glu"}, "activation_fn must be one of relu, .*, got 'glu'"),
        ({"activation_fn": ["relu"]}, r"activation_fn must be one of relu, .*, got \['relu'\]"),
        ({"encoder_attention_heads": None}, "num_heads must be given as a positive integer"),
        ({"attention_dropout": torch.ones(2)}, "attention_dropout must be a plain value, got torch.Size"),
        ({"arch": "transformer_unidirectional"}, "arch must be one of transformer, "),  # has a causal encoder
        ({"arch": None, "_name": ["transformer"]}, "arch must be one of transformer, "),
        ({"max_target_positions": 0}, f"max_target_positions {POSITIONS}0"),
        *(
            ({"max_source_positions": value}, f"max_source_positions {POSITIONS}")
            for value in (math.inf, math.nan, 1e12, 10**12, "x", [1], True)
        ),
    ],
    ids=str,
)
def test_unsupported_option_is_named(changes, message, content):
    vars(content["args"]).update(changes)
    with pytest.raises(ValueError, match=rf"^{message}[^\n]*\.$"):
        from_fairseq(content)


def test_architecture_with_the_same_computation():
    from_fairseq(checkpoint("cfg", arch=None, _name="transformer_align"))


@pytest.mark.parametrize(
    ("part", "option"), [("quant_noise", "pq"), ("encoder", "add_adapters"), ("decoder", "layerdrop")]
)
def test_nested_option(part, option):
    content = checkpoint("nested")
    content["cfg"]["model"].setdefault(part, {})[option] = 0.1
    if option == "layerdrop":
        assert any("decoder_layerdrop=0.1" in note for note in from_fairseq(content)[1].notes)
    else:
        with pytest.raises(ValueError, match=f"^{part}_{option} must be off, got 0.1"):
            from_fairseq(content)


@pytest.mark.parametrize(
    "name",
    [
        "encoder.layers.0.fc3.weight",  # a gated feed-forward network
        "encoder.layers.0.encoder_attn.k_proj.weight",
        "encoder.layer_norm.weight",  # a final norm, which requires normalize_before
    ],
)
def test_unexpected_weight_is_named(name, content):
    content["model"][name] = torch.zeros(2, 2)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        from_fairseq(content)


def test_index_of_a_layer(content):
    content["model"]["encoder.layers.1999.fc1.bias"] = torch.zeros(24)
    with pytest.raises(ValueError, match=r"must contain weights of 2001 layers, got \d+ weights"):
        from_fairseq(content)


def test_missing_weight_and_wrong_shape_are_named(content):
    weight = content["model"].pop("decoder.layers.0.encoder_attn.k_proj.bias")
    with pytest.raises(ValueError, match=r"decoder\.layers\.0\.encoder_attn\.k_proj\.bias.* missing"):
        from_fairseq(content)
    content["model"]["decoder.layers.0.encoder_attn.k_proj.bias"] = weight[:5]
    with pytest.raises(ValueError, match=r"encoder_attn\.k_proj\.bias.*got \[5\]"):
        from_fairseq(content)


def test_weight_name_that_is_not_a_string(content):
    content["model"][3] = torch.ones(2)
    with pytest.raises(ValueError, match=r"^'model' of the fairseq checkpoint must be a state dict"):
        from_fairseq(content)


def quantized(weight):
    return torch._empty_affine_quantized(weight.shape, scale=0.1, zero_point=0, dtype=torch.qint8)


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize(
    ("name", "change", "found"),
    [
        (FC1, lambda weight: weight.to_sparse(), "layout torch.sparse_coo"),
        (TABLE, quantized, "torch.qint8"),
        (FC1, lambda weight: weight.to("meta"), "the meta device"),
        (TABLE, lambda weight: weight.int(), "torch.int32"),
        (FC1, lambda weight: weight.to(torch.float8_e4m3fn), "torch.float8_e4m3fn"),
        (FC1, lambda weight: weight[:1].expand(2**33, *weight.shape[1:]), r"expanded to \[8589934592"),
        (TABLE, lambda weight: weight.sum(), r"\[\]"),
    ],
    ids=["sparse", "quantized", "meta", "integers", "float8", "expanded", "no dimensions"],
)
def test_weight_that_is_not_a_dense_float_tensor(name, change, found, content):
    content["model"][name] = change(content["model"][name])
    with pytest.raises(ValueError, match=rf"^{name} of the fairseq checkpoint must [^\n]*{found}"):
        from_fairseq(content)


def test_shared_embeddings(tmp_path):
    """share_all_embeddings requires equal matrices and equal dictionaries."""
    content = checkpoint(share_all_embeddings=True)
    content["model"]["decoder.embed_tokens.weight"] = torch.zeros(SOURCE_TOKENS, 16)
    with pytest.raises(ValueError, match="must be equal if share_all_embeddings is on"):
        from_fairseq(content)
    files = folder_with_two_dictionaries(tmp_path, share_all_embeddings=True)
    write_dictionary(files["target_dict"], words(SOURCE_TOKENS - 4, "t"))
    check_refused("share_all_embeddings", tmp_path, convert_fairseq, output=tmp_path / "out", **files)


def scalar_embedding(folder):
    content = checkpoint()
    content["model"][TABLE] = torch.tensor(1.0)
    torch.save(content, folder / "checkpoint.pt")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: write_dictionary(f / "dict.de.txt", words(5, "s")), "a token for each row of the encoder's"),
        (lambda f: write_dictionary(f / "dict.en.txt", words(99, "t")), "a token for each row of the decoder's"),
        (lambda f: (f / "dict.de.txt").write_text("word\n"), "a token and its count"),
        (lambda f: (f / "dict.de.txt").write_text("a 1\na 1\n"), "each token once"),
        (lambda f: (f / "dict.de.txt").write_bytes(b"\xff\xfe 1\n"), "UTF-8"),
        (lambda f: (f / "dict.de.txt").unlink(), "cannot be read"),
        (lambda f: (f / "checkpoint.pt").unlink(), "an existing file"),
        (lambda f: torch.save([1], f / "checkpoint.pt"), "fairseq checkpoint"),
        (lambda f: torch.save({"model": {"w": torch.ones(1)}}, f / "checkpoint.pt"), "options"),
        (scalar_embedding, rf"{TABLE} of .* must have 2 dimensions, got \[\]"),
        (lambda f: (f / "out").write_text("taken"), "new or an empty folder"),
    ],
)
def test_invalid_files_write_nothing(tmp_path, change, message):
    files = folder_with_two_dictionaries(tmp_path)
    change(tmp_path)
    check_refused(message, tmp_path, convert_fairseq, output=tmp_path / "out", **files)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        ("e </w>\n", "version 0.2"),
        ("a b c d\n", "two symbols"),
        ("a b c\n", "two symbols"),
        ("", "at least one"),
        (None, "target_codes must be given together with source codes"),
    ],
)
def test_invalid_codes(codes, message, tmp_path):
    dictionary = write_dictionary(tmp_path / "dict.txt", ["a"])
    (tmp_path / "codes").write_text(codes or "")
    with pytest.raises(ValueError, match=message):
        fairseq_tokenizer(dictionary, **{"target_codes" if codes is None else "codes": tmp_path / "codes"})


def test_files_without_source_dictionary(tmp_path):
    torch.save(checkpoint(), tmp_path / "c.pt")
    with pytest.raises(ValueError, match="source_dict must be given with target_dict, source_codes or target_codes"):
        convert_fairseq(tmp_path / "c.pt", tmp_path / "out", source_codes=tmp_path / "codes")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_truncated_checkpoint_is_named(part, zipped, tmp_path):
    path = tmp_path / "cut.pt"
    torch.save(checkpoint(), path, _use_new_zipfile_serialization=zipped)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    check_refused(r"cut\.pt", tmp_path, convert_fairseq, path, tmp_path / "out")


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize(
    ("call", "name"), [(Call(exec, "1"), "builtins.exec"), (Call(os.system, "touch ran"), "posix.system")]
)
def test_code_in_checkpoint_is_named_and_not_executed(call, name, zipped, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({**checkpoint(), "extra": call}, tmp_path / "c.pt", _use_new_zipfile_serialization=zipped)
    message = f"contains .*{name}, which is not allowed"
    check_refused(message, tmp_path, convert_fairseq, tmp_path / "c.pt", tmp_path / "out")
