"""Conversion of eole's models, compared with a forward pass written for the tests."""

import json

import pytest
import torch
from datasets import Dataset
from safetensors.torch import save_file
from torch.nn.functional import gelu
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, pipeline

from modeling_random_transformer.data.tokenization import tokenize_pairs
from modeling_random_transformer.extras.conversion import convert_eole
from tests.helpers.conversion import assert_same_as_reference, check_conversion_error
from tests.helpers.other_tools import TARGET, Original, random_weights, without_biases, write_eole

PRE = {"encoder_normalize_before": True}
EQUAL = {"bos_token": "</s>"}  # the default of eos_token
GELU = {"act": gelu, "epsilon": 0.1}
TIED = {"share_decoder_input_output_embed": True}
LEARNED = {"encoder_learned_pos": True, "decoder_learned_pos": True}


def convert(folder, weights, **changes):
    """A converted folder's model and tokenizer, and the report."""
    report = convert_eole(write_eole(folder, weights, **changes), folder / "out")
    loaded = (loader.from_pretrained(folder / "out") for loader in (AutoModelForSeq2SeqLM, AutoTokenizer))
    return (*loaded, report)


@pytest.mark.parametrize("biases", ["all", "without attention", "none"])
@pytest.mark.parametrize(
    ("options", "changes", "reference"),
    [
        ({}, {}, {}),
        (TIED, {"norm_eps": 0.1, "mlp_activation_fn": "gelu", "share_decoder_embeddings": True}, GELU),
        ({}, {"positions": "SinusoidalConcat"}, {"paper": False}),
        (LEARNED, {"positions": "Learned"}, {"scale": False}),
    ],
    ids=["sinusoids", "gelu and epsilon", "concatenated", "learned"],
)
def test_logits_and_search_equal_reference(options, changes, reference, biases, tmp_path):
    weights = random_weights(**PRE, **options)
    if biases != "all":
        weights = without_biases(weights, attention_only=biases != "none")
    model, tokenizer, report = convert(tmp_path, weights, **changes)
    original = Original(weights, tokenizer, **reference)
    assert_same_as_reference(model, tokenizer, report, original)
    assert model.config.attention_bias == (biases == "all")
    assert (model.config.dropout, model.config.attention_dropout) == (0.1, 0.1)


def test_no_end_token_after_sources(tmp_path):
    """As in eole, also after loading and in a pipeline; targets end with it."""
    model, tokenizer, _ = convert(tmp_path, random_weights(**PRE))
    source, target = [tokenizer.convert_tokens_to_ids(names) for names in (["s0</w>", "s1</w>"], ["hel", "lo</w>"])]
    for _ in range(2):
        assert tokenizer("s0 s1")["input_ids"] == source
        assert tokenizer(text_target="hello")["input_ids"] == [*target, tokenizer.eos_token_id]
        assert tokenizer.encode_texts(["s0 s1"])["input_ids"] == [source]
    pairs = Dataset.from_dict({"line": [1], "source": ["s0 s1"], "target": ["hello"]})
    rows = tokenize_pairs(pairs, tokenizer)[0]
    assert (rows["input_ids"][:], rows["labels"][:]) == ([source], [[*target, tokenizer.eos_token_id]])
    pipe = pipeline("seq2seq", model=model, tokenizer=tokenizer)
    expected = model.generate(torch.tensor([source]), num_beams=3, max_new_tokens=6)
    translation = pipe("s0 s1", num_beams=3, max_new_tokens=6)["generated_text"]
    assert translation == tokenizer.decode(expected[0], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architecture": "transformer_lm"}, "model.architecture must be 'transformer', got 'transformer_lm'"),
        ({"positions": None}, "position_encoding_type must be one of SinusoidalInterleaved, .* got 'null'"),
        ({"positions": "Rotary"}, "position_encoding_type must be one of SinusoidalInterleaved, .* got 'Rotary'"),
        ({"layer_norm": "rms"}, "model.encoder.layer_norm must be one of standard, standardFP32, got 'rms'"),
        ({"mlp_activation_fn": "gated-silu"}, "model.encoder.mlp_activation_fn must be one of relu"),
        ({"heads_kv": 1}, "model.encoder.heads_kv must be off, got 1"),
        ({"layers": 3}, "must contain the weight 'encoder.transformer_layers.2.*', which is missing"),
        ({"decoder": {"layers": 1}}, "without a counterpart in this model, got decoder.transformer_layers.1."),
        ({"decoder": {"heads": 4}}, "model.decoder.heads must be model.encoder.heads=2, got 4"),
        ({"encoder": {"encoder_layer_style": "postnorm"}}, "encoder_layer_style must be 'standard', got 'postnorm'"),
        ({"training": {"dropout": 0.1}}, "training.dropout must be a list of rates, got 0.1"),
        ({"norm_eps": -1}, "model.encoder.norm_eps must be a number above 0"),
    ],
    ids=str,
)
def test_unsupported_option_is_named(changes, message, tmp_path):
    write_eole(tmp_path, random_weights(**PRE), **changes)
    check_conversion_error(message, tmp_path, convert_eole, tmp_path, tmp_path / "out")


@pytest.mark.parametrize("stack", [{}, {"mlp_activation_fn": None}])
def test_stacks_without_an_option_have_that_of_the_model(stack, tmp_path):
    weights = random_weights(**PRE)
    model, *_ = convert(tmp_path, weights, mlp_activation_fn="gelu", encoder=stack, decoder=stack)
    assert model.config.activation_function == "gelu"


@pytest.mark.parametrize("value", ["Rotary", None])
def test_positions_of_the_model_apply_to_the_embeddings(value, tmp_path):
    """Embeddings without this option have that of the model."""
    write_eole(tmp_path, random_weights(**PRE), position_encoding_type=value, embeddings={})
    message = f"position_encoding_type must be one of SinusoidalInterleaved, .* got '{value or 'null'}'"
    check_conversion_error(message, tmp_path, convert_eole, tmp_path, tmp_path / "out")


@pytest.mark.parametrize(
    ("name", "original"),
    [
        ("decoder.embed_tokens", "tgt_emb.embeddings"),
        ("decoder.output_projection", "generator"),
    ],
)
def test_missing_weight_that_is_not_shared(name, original, tmp_path):
    """A folder may lack a file of weights."""
    weights = random_weights(**PRE)
    del weights[f"{name}.weight"]
    write_eole(tmp_path, weights)
    message = f"must contain the weight '{original}.weight', which is missing"
    check_conversion_error(message, tmp_path, convert_eole, tmp_path, tmp_path / "out")


def change_vocabulary(**changes):
    def change(folder):
        path = folder / "vocab.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "model.00.safetensors").unlink(), "must contain the weights as model.00.safetensors, got none"),
        (lambda f: (f / "model.00.safetensors").write_bytes(b"x" * 99), "must be a complete file of weights"),
        (lambda f: save_file({"gate": torch.ones(1)}, f / "model.01.safetensors"), "got gate"),
        (lambda f: (f / "config.json").write_text("[" * 99_999), "must be a JSON file"),
        (lambda f: (f / "config.json").write_text("{}"), "model.architecture must be 'transformer', got None"),
        (change_vocabulary(src=3), "src of .* must be a list, got 3"),
        (change_vocabulary(tgt=[*TARGET, ["x"]]), r"must contain strings, got \['x'\]"),
        (change_vocabulary(tgt=TARGET), "must contain the special tokens, but lacks <blank>"),
        (change_vocabulary(specials=[]), "specials of .* must be a dict"),
        (change_vocabulary(specials=EQUAL, decoder_start_token="</s>"), "special tokens of src .* must differ"),
        (change_vocabulary(decoder_start_token="</s>"), "decoder_start_token must be '<s>', got '</s>'"),
        (lambda f: (f / "bpe.codes").write_text(""), "at least one pair"),
        (lambda f: (f / "out").write_text("taken"), "new or an empty folder"),
    ],
)
def test_invalid_files_write_nothing(change, message, tmp_path):
    change(write_eole(tmp_path, random_weights(**PRE)))
    check_conversion_error(message, tmp_path, convert_eole, tmp_path, tmp_path / "out")
