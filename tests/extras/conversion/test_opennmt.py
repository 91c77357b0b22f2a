"""Conversion of OpenNMT-py's checkpoints, compared with a forward pass written for the tests."""

from argparse import Namespace
from datetime import date

import pytest
import torch
from sentencepiece import SentencePieceProcessor
from torch.nn.functional import gelu
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from modeling_random_transformer.extras.conversion import convert_opennmt, from_opennmt
from tests.extras.sentencepiece.test_sentencepiece import CORPUS, train
from tests.helpers.conversion import Call, assert_same_as_reference, check_conversion_error
from tests.helpers.fairseq import SOURCE_TOKENS, TARGET_TOKENS, words
from tests.helpers.other_tools import (
    SPECIAL,
    TARGET,
    Original,
    blank,
    opennmt_checkpoint,
    random_weights,
    without_biases,
    write_opennmt,
    write_opennmt2,
)

PRE = {"encoder_normalize_before": True}
TIED = {**PRE, "share_decoder_input_output_embed": True}
# As in OpenNMT-py 2, whose source vocabulary has no tokens for the start and the end.
WITHOUT_END = ["<unk>", "<pad>", *words(SOURCE_TOKENS - 2, "s")]


def weights_of(**options):
    """Random weights, with a bias of the output layer."""
    return random_weights(**options) | {"decoder.output_projection.bias": torch.randn(TARGET_TOKENS)}


def convert(path):
    """A converted checkpoint's model and tokenizer, and the report."""
    report = convert_opennmt(path, path.parent / "out")
    loaded = (loader.from_pretrained(path.parent / "out") for loader in (AutoModelForSeq2SeqLM, AutoTokenizer))
    return (*loaded, report)


def check_same(path, weights, **options):
    """Check that a converted checkpoint has the logits and the search of the reference with these weights."""
    model, tokenizer, report = convert(path)
    original = Original(weights, tokenizer, **{"epsilon": 1e-6, **options})
    assert_same_as_reference(model, tokenizer, report, original)
    return model, tokenizer


@pytest.mark.parametrize(
    ("options", "changes", "reference"),
    [
        (PRE, {}, {}),
        (TIED, {"norm_eps": 0.1, "pos_ffn_activation_fn": "gelu"}, {"epsilon": 0.1, "act": gelu}),
        (PRE, {"position_encoding_type": "SinusoidalConcat"}, {"paper": False}),
        (TIED, {"position_encoding": False, "layers": 2, "enc_layers": 6, "dec_layers": 6}, {"scale": False}),
    ],
    ids=["sinusoids", "gelu and epsilon", "concatenated", "no positions"],
)
@pytest.mark.parametrize("biases", ["all", "without attention", "none"])
def test_logits_and_search_equal_reference(options, changes, reference, biases, tmp_path):
    weights = weights_of(**options)
    if biases != "all":
        kept = without_biases(weights, attention_only=biases != "none")
        weights = kept | {"decoder.output_projection.bias": weights["decoder.output_projection.bias"]}
    path = write_opennmt(tmp_path, opennmt_checkpoint(weights, **changes))
    if not changes.get("position_encoding", True):
        weights |= {f"{stack}.embed_positions.weight": torch.zeros(99, 16) for stack in ("encoder", "decoder")}
    model, _ = check_same(path, weights, **reference)
    assert model.config.attention_bias == (biases == "all")
    assert (model.config.dropout, model.config.attention_dropout, model.config.norm_order) == (0.1, 0.1, "pre")


@pytest.mark.parametrize("source", [None, WITHOUT_END], ids=["shared specials", "no end in sources"])
def test_fields_of_version_2(source, tmp_path):
    """Vocabularies in objects, whose classes are not loaded."""
    weights = weights_of(**PRE)
    content = opennmt_checkpoint(weights)
    if source:
        content["vocab"]["src"] = blank(source)
    _, tokenizer = check_same(write_opennmt2(tmp_path, content), weights, **({"source": source} if source else {}))
    assert tokenizer.convert_ids_to_tokens(tokenizer("s0 s1")["input_ids"]) == ["s0</w>", "s1</w>"]
    assert tokenizer(text_target="hello")["input_ids"][-1] == tokenizer.eos_token_id


def test_sentencepiece_model_of_a_shared_vocabulary(tmp_path):
    """OpenNMT-py needs one model then. Tokens that fill the vocabulary up to a multiple are kept."""
    processor: SentencePieceProcessor = train(tmp_path / "sp.model")
    pieces = [processor.id_to_piece(i) for i in range(len(processor))]
    tokens = [*blank(SPECIAL), *(piece for piece in pieces if piece not in SPECIAL), "averyunlikelytoken0"]
    weights = random_weights(share_all_embeddings=True, **PRE)
    table = torch.randn(len(tokens), 16)
    weights |= {name: table for name in weights if "embed_tokens" in name or "output_projection" in name}
    models = {"src_subword_model": "/other/sp.model", "tgt_subword_model": None}
    content = opennmt_checkpoint(weights, _all_transform={"sentencepiece"}, **models)
    content["vocab"] |= {"src": tokens, "tgt": tokens}
    model, tokenizer, report = convert(write_opennmt(tmp_path, content))
    ids = tokenizer(CORPUS[0])["input_ids"]
    assert tokenizer.convert_ids_to_tokens(ids) == processor.encode(CORPUS[0], out_type=str)
    rows = [tokens.index(token) for token in tokenizer.convert_ids_to_tokens(ids)]
    assert torch.equal(model.model.shared.weight[ids], table[rows])
    assert "averyunlikelytoken0" in tokenizer.get_vocab()
    assert model.config.tie_word_embeddings
    assert "Transforms of the model: ['sentencepiece']." in report.notes


def test_model_without_a_folder(tmp_path):
    path = write_opennmt(tmp_path, opennmt_checkpoint(weights_of(**PRE)))
    model, report = from_opennmt(path)
    assert not model.training
    assert report.config["num_heads"].value == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder_type": "brnn"}, "encoder_type must be 'transformer', got 'brnn'"),
        ({"decoder_type": None}, "decoder_type must be 'transformer', got None"),
        ({"model_task": "lm"}, "model_task must be 'seq2seq', got 'lm'"),
        ({"max_relative_positions": -1}, "max_relative_positions must be off, got -1"),
        ({"max_relative_positions": 20}, "max_relative_positions must be off, got 20"),
        ({"num_kv": 1}, "num_kv must be off, got 1"),
        ({"parallel_residual": True}, "parallel_residual must be off, got True"),
        ({"copy_attn": True}, "copy_attn must be off, got True"),
        ({"lora_layers": ["w_1"]}, r"lora_layers must be off, got \['w_1'\]"),
        ({"layer_norm": "rms"}, "layer_norm must be 'standard', got 'rms'"),
        ({"self_attn_type": "average"}, "self_attn_type must be one of scaled-dot, scaled-dot-flash, got 'average'"),
        ({"pos_ffn_activation_fn": "silu"}, "pos_ffn_activation_fn must be one of relu, gelu, got 'silu'"),
        ({"position_encoding_type": "x"}, "must be one of SinusoidalInterleaved, SinusoidalConcat, got 'x'"),
        ({"generator_function": "sparsemax"}, "generator_function must be 'softmax', got 'sparsemax'"),
        ({"enc_layers": 3}, "must contain the weight 'encoder.transformer.2.*', which is missing"),
        ({"layers": 1, "enc_layers": 2, "dec_layers": 2}, "without a counterpart in this model, got encoder.trans"),
        ({"heads": 0}, "heads must be an integer from 1"),
        ({"heads": 3}, "d_model must be a multiple of num_heads=3"),
        ({"dropout": 0.1}, "dropout must be a list of rates, got 0.1"),
        ({"norm_eps": torch.ones(2)}, "norm_eps must be a plain value, got"),
        ({"_all_transform": {1}}, "_all_transform must be a set of names, got a set"),
        ({"src_subword_model": ["x"]}, r"src_subword_model must be a string, got \['x'\]"),
        ({"src_subword_model": "../other.codes"}, "must contain the file of '../other.codes', which is missing"),
        ({"src_subword_model": "x" * 5000}, "must contain the file of 'xxx.*', which is missing"),
        ({"heads": "2"}, r"'opt' of .*model_step_60.pt must have options that .* supports: heads must be an integer"),
    ],
    ids=str,
)
def test_unsupported_option_is_named(changes, message, tmp_path):
    path = write_opennmt(tmp_path, opennmt_checkpoint(weights_of(**PRE), **changes))
    check_conversion_error(message, tmp_path, convert_opennmt, path, tmp_path / "out")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"opt": {"heads": 2}}, "must be a checkpoint of OpenNMT-py 2 or 3 with 'opt' and 'vocab', got none"),
        ({"vocab": []}, "must be a checkpoint of OpenNMT-py 2 or 3 with 'opt' and 'vocab', got none"),
        ({"vocab": {}}, "src of .* must be a list, got None"),
        ({"vocab": {"src": TARGET, "tgt": TARGET}}, "must contain the special tokens, but lacks <blank>"),
        ({"vocab": {"src": blank(TARGET), "tgt": [["x"]]}}, r"must contain strings, got \['x'\]"),
        ({"vocab": {"src": ["\ud800"], "tgt": blank(TARGET)}}, r"src of .* must contain strings, got '\\ud800'"),
        ({"vocab": {"src": blank(TARGET), "tgt": blank(TARGET), "decoder_start_token": "</s>"}}, "decoder_start_token"),
        ({"vocab": {"src": blank(TARGET), "tgt": blank(TARGET)}}, "must have as many rows as tokens"),
        ({"generator": None}, "'generator' of .* must be a state dict of named tensors, got"),
        ({"model": {"w": 1}}, "'model' of .* must be a state dict of named tensors, got"),
        ({"model": torch.ones(2)}, "'model' of .* must be a state dict of named tensors, got"),
        ({"model": {"w": torch.ones(1)}}, "must contain weights under 'encoder.transformer.'"),
        ({"optim": Call(print, "x")}, "contains builtins.print, which is not allowed"),
        ({"optim": date(2024, 1, 1)}, "contains datetime.date, which is not allowed"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value),
)
def test_invalid_content_writes_nothing(change, message, tmp_path):
    path = write_opennmt(tmp_path, opennmt_checkpoint(weights_of(**PRE)) | change)
    check_conversion_error(message, tmp_path, convert_opennmt, path, tmp_path / "out")


@pytest.mark.parametrize("fields", [[], [("src", 3)], None, Namespace()], ids=str)
def test_other_attributes_of_fields(fields, tmp_path):
    path = write_opennmt2(tmp_path, opennmt_checkpoint(weights_of(**PRE)), fields=fields)
    message = "src of .* must be a field with a vocabulary, got an error: "
    check_conversion_error(message, tmp_path, convert_opennmt, path, tmp_path / "out")
