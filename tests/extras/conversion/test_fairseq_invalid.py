"""fairseq checkpoints and dictionaries that are not supported: each raises a one-line error that names the cause."""

import math

import pytest
import torch

from modeling_random_transformer.extras.conversion import convert_fairseq, fairseq_tokenizer, from_fairseq
from tests.helpers.conversion import check_conversion_error
from tests.helpers.fairseq import checkpoint, folder_with_two_dictionaries, words, write_dictionary

FC1, TABLE = "encoder.layers.0.fc1.weight", "encoder.embed_tokens.weight"
KEY = "decoder.layers.0.encoder_attn.k_proj.bias"
POSITIONS = "must be an integer from 1 to 1048576, got "
SHARED = {"share_all_embeddings": True}


@pytest.fixture
def content():
    return checkpoint()


@pytest.mark.parametrize("content", [{}, {"args": 1}, {"model": 3}], ids=repr)
def test_checkpoint_of_another_format(content):
    with pytest.raises(ValueError, match=r"^'model' of the fairseq checkpoint must be a state dict"):
        from_fairseq(content)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layernorm_embedding": True}, "layernorm_embedding must be off, got True"),
        ({"encoder": {"add_adapters": 0.1}}, "encoder_add_adapters must be off, got 0.1"),
        ({"quant_noise": {"pq": 0.1}}, "quant_noise_pq must be off, got 0.1"),
        ({"decoder_embed_dim": 32}, "decoder_embed_dim must be encoder_embed_dim=16, got 32"),
        ({"decoder_normalize_before": True}, "decoder_normalize_before must be encoder_normalize_before=False"),
        ({"encoder_layers": 3}, "the fairseq checkpoint must contain the weight 'encoder.layers.2."),
        ({"decoder_layers": 2}, "the fairseq checkpoint must contain the weight 'decoder.layers.1."),
        ({"activation_fn": "glu"}, "activation_fn must be one of relu, .*, got 'glu'"),
        ({"encoder_attention_heads": None}, "encoder_attention_heads must be an integer from 1 to .*, got None"),
        ({"decoder_attention_heads": None}, "decoder_attention_heads must be an integer from 1 to .*, got None"),
        # Weights that contradict the options: fairseq would use one of two embeddings for both.
        (SHARED, "share_all_embeddings must be off if encoder.embed_tokens.weight and decoder.* differ, got on"),
        (
            {"share_decoder_input_output_embed": True},
            "share_decoder_input_output_embed must be off if decoder.embed_tokens.weight and decoder.output_.* differ",
        ),
        ({"attention_dropout": torch.ones(2)}, "attention_dropout must be a plain value, got torch.Size"),
        ({"arch": "transformer_unidirectional"}, "arch must be one of transformer, "),  # has a causal encoder
        ({"arch": None, "_name": ["transformer"]}, "arch must be one of transformer, "),
        *(
            ({"max_source_positions": value}, f"max_source_positions {POSITIONS}")
            for value in (0, math.inf, math.nan, 1e12, 10**12, "x", [1], True)
        ),
    ],
    ids=str,
)
def test_unsupported_option_is_named(changes, message, content):
    vars(content["args"]).update(changes)
    with pytest.raises(ValueError, match=rf"^{message}[^\n]*\.$"):
        from_fairseq(content)


def test_final_norms_of_a_post_norm_model():
    pre_norm = {"encoder_normalize_before": True, "decoder_normalize_before": True}
    content = checkpoint(**pre_norm)
    for name in pre_norm:
        delattr(content["args"], name)
    with pytest.raises(ValueError, match=r"^encoder_normalize_before must be on for a model with encoder\.layer_norm"):
        from_fairseq(content)


def test_options_without_an_effect():
    """An architecture with the same computation, and options of the training."""
    changes = {"decoder_layerdrop": 0.1, "activation_dropout": 0.0, "relu_dropout": 0.2}
    model, _ = from_fairseq(checkpoint("nested", arch=None, _name="transformer_align", **changes))
    assert model.config.activation_dropout == 0.2


def quantized(weight):
    return torch._empty_affine_quantized(weight.shape, scale=0.1, zero_point=0, dtype=torch.qint8)


def added(*shape):
    return lambda _: torch.zeros(shape)


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (FC1, lambda weight: weight.to_sparse(), "layout torch.sparse_coo"),
        (TABLE, quantized, "torch.qint8"),
        (FC1, lambda weight: weight.to("meta"), "the meta device"),
        (TABLE, lambda weight: weight.int(), "torch.int32"),
        (FC1, lambda weight: weight.to(torch.float8_e4m3fn), "torch.float8_e4m3fn"),
        (FC1, lambda weight: weight[:1].expand(2**33, *weight.shape[1:]), r"expanded to \[8589934592"),
        (FC1, lambda weight: weight.fill_(torch.inf), "one with values that are infinite or not a number"),
        (TABLE, lambda weight: weight.sum(), r"2 dimensions, got \[\]"),
        (KEY, lambda weight: weight[:5], r"the shape of .*, got \[5\]"),
        (KEY, lambda _: None, "be a state dict of named tensors"),
        (3, added(2), "be a state dict of named tensors"),
        ("encoder.layers.0.fc3.weight", added(2, 2), "fc3"),  # a gated feed-forward network
        ("encoder.layers.0.encoder_attn.k_proj.weight", added(2, 2), "encoder_attn"),  # of the decoder only
        ("encoder.layers.1999.fc1.bias", added(24), r"contain 2001 layers, got only \d+ weights"),
    ],
)
def test_weight_is_named(name, change, message, content):
    content["model"][name] = change(content["model"].get(name))
    with pytest.raises(ValueError, match=rf"the fairseq checkpoint must [^\n]*{message}"):
        from_fairseq(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: write_dictionary(f / "dict.de.txt", words(5, "s")), f"{TABLE} of .* must have as many rows as"),
        (lambda f: write_dictionary(f / "dict.en.txt", words(99, "t")), r"decoder\.embed_tokens\.weight of .* rows as"),
        (lambda f: (f / "dict.de.txt").write_text("word\n"), "a token and its count"),
        (lambda f: (f / "dict.de.txt").write_text("a 1\na 1\n"), "each token once, got 'a' again as token 5"),
        (lambda f: (f / "dict.de.txt").write_text("a 1\na 1 #fairseq:other\n"), "line 2 of .* a token and its count"),
        (lambda f: (f / "dict.de.txt").write_bytes(b"\xff\xfe 1\n"), "UTF-8"),
        (lambda f: torch.save([1], f / "checkpoint.pt"), "must be a state dict of named tensors, got list"),
        (lambda f: torch.save({"model": {"w": torch.ones(1)}}, f / "checkpoint.pt"), "options"),
        (lambda f: torch.save(checkpoint(**SHARED), f / "checkpoint.pt"), "must be equal if share_all_embeddings is"),
        (lambda f: (f / "out").write_text("taken"), "new or an empty folder"),
    ],
)
def test_invalid_files_write_nothing(tmp_path, change, message):
    files = folder_with_two_dictionaries(tmp_path)
    change(tmp_path)
    check_conversion_error(message, tmp_path, convert_fairseq, output=tmp_path / "out", **files)


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


@pytest.mark.parametrize("tokens", [["<s>"], ["a</w>@@", "a"]])
def test_tokens_of_one_piece(tokens, tmp_path):
    (tmp_path / "codes").write_text("a b\n")
    with pytest.raises(ValueError, match=r"each token once, got '(<s>|a)' again"):
        fairseq_tokenizer(write_dictionary(tmp_path / "dict.txt", tokens), tmp_path / "codes")


def test_files_without_source_dictionary(tmp_path):
    torch.save(checkpoint(), tmp_path / "c.pt")
    with pytest.raises(ValueError, match="source_dict must be given with target_dict, source_codes or target_codes"):
        convert_fairseq(tmp_path / "c.pt", tmp_path / "out", source_codes=tmp_path / "codes")
