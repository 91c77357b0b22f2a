"""The configuration: defaults, presets, aliases and validation."""

import copy
import json

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoConfig

from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer.configuration_random_transformer import PRESETS

DEFAULTS = {
    "vocab_size": 37000,
    "d_model": 512,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "num_heads": 8,
    "d_k": 64,
    "d_v": 64,
    "d_ff": 2048,
    "activation_function": "relu",
    "dropout": 0.1,
    "attention_dropout": 0.0,
    "activation_dropout": 0.0,
    "norm_order": "post",
    "final_layer_norm": False,
    "layer_norm_eps": 1e-6,
    "attention_bias": True,
    "attention_scale": 0.125,
    "position_embedding": "sinusoidal",
    "sinusoid_layout": "interleaved",
    "position_offset": 0,
    "max_position_embeddings": 1024,
    "scale_embedding": True,
    "share_embeddings": True,
    "tie_word_embeddings": True,
    "lm_head_bias": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "is_encoder_decoder": True,
}

# (field, value, allowed values in the message)
INVALID_VALUES = [
    ("vocab_size", 0, "positive integer"),
    ("vocab_size", "37000", "positive integer"),
    ("d_model", -512, "positive integer"),
    ("d_model", 511, "multiple of num_heads"),
    ("d_model", 512.0, "positive integer"),
    ("encoder_layers", 0, "positive integer"),
    ("decoder_layers", -1, "positive integer"),
    ("num_heads", 0, "positive integer"),
    ("num_heads", True, "positive integer"),
    ("d_k", 0, "positive integer"),
    ("d_v", -3, "positive integer"),
    ("d_ff", None, "positive integer"),
    ("activation_function", "rleu", "'relu'"),
    ("activation_function", ["relu"], "'relu'"),
    ("dropout", -0.1, "at least 0 and below 1"),
    ("dropout", 1.0, "at least 0 and below 1"),
    ("attention_dropout", "0.1", "at least 0 and below 1"),
    ("activation_dropout", float("nan"), "at least 0 and below 1"),
    ("norm_order", "middle", "'post', 'pre'"),
    ("final_layer_norm", "yes", "True or False"),
    ("layer_norm_eps", 0, "positive number"),
    ("attention_bias", 1, "True or False"),
    ("attention_scale", 0.0, "positive number"),
    ("attention_scale", float("inf"), "positive number"),
    ("position_embedding", "rotary", "'sinusoidal', 'learned', 'none'"),
    ("sinusoid_layout", "mixed", "'interleaved', 'concatenated'"),
    ("position_offset", -1, "at least 0"),
    ("max_position_embeddings", 0, "positive integer"),
    ("scale_embedding", None, "True or False"),
    ("share_embeddings", "no", "True or False"),
    ("tie_word_embeddings", 0, "True or False"),
    ("lm_head_bias", None, "True or False"),
    ("use_cache", "always", "True or False"),
    ("pad_token_id", 37000, "0 to 36999"),
    ("bos_token_id", -1, "0 to 36999"),
    ("eos_token_id", [2, 40000], "0 to 36999"),
    ("decoder_start_token_id", "1", "0 to 36999"),
]


def test_defaults_are_the_papers_base_model():
    config = RandomTransformerConfig()
    assert {field: getattr(config, field) for field in DEFAULTS} == DEFAULTS
    assert config.model_type == "random_transformer"


@pytest.mark.parametrize(("field", "value", "allowed"), INVALID_VALUES)
def test_invalid_value_raises(field, value, allowed):
    with pytest.raises(ValueError, match="must be") as error:
        RandomTransformerConfig(**{field: value})
    message = str(error.value)
    assert field in message
    assert (repr(value) in message) or (str(value) in message)
    assert allowed in message


@given(st.sampled_from(["vocab_size", "d_model", "encoder_layers", "num_heads", "d_ff"]), st.integers(max_value=0))
def test_sizes_must_be_positive(field, value):
    with pytest.raises(ValueError, match=field):
        RandomTransformerConfig(**{field: value})


def test_odd_d_model_raises_for_sinusoids_only():
    odd = {"d_model": 15, "num_heads": 3}
    with pytest.raises(ValueError, match=r"d_model must be even .* got 15"):
        RandomTransformerConfig(**odd)
    assert RandomTransformerConfig(position_embedding="learned", **odd).d_k == 5


def test_derived_fields():
    config = RandomTransformerConfig(d_model=12, num_heads=3, d_k=5)
    assert (config.d_v, config.attention_scale) == (5, 5**-0.5)
    assert RandomTransformerConfig(norm_order="pre").final_layer_norm is True
    assert RandomTransformerConfig(norm_order="pre", final_layer_norm=False).final_layer_norm is False
    assert RandomTransformerConfig(d_model=10, num_heads=4, d_k=3, d_v=2).d_v == 2


def test_special_ids_may_be_none():
    config = RandomTransformerConfig(pad_token_id=None, bos_token_id=None, eos_token_id=None)
    assert config.pad_token_id is None


def test_aliases_read_and_write_their_fields():
    config = RandomTransformerConfig(encoder_layers=3, decoder_layers=5)
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (512, 8, 3)
    assert config.get_text_config(decoder=True).num_hidden_layers == 5


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_preset_round_trip(name, tmp_path):
    config = RandomTransformerConfig.from_preset(name)
    config.save_pretrained(tmp_path)
    loaded = RandomTransformerConfig.from_pretrained(tmp_path)
    assert {field: getattr(loaded, field) for field in DEFAULTS} == {
        field: getattr(config, field) for field in DEFAULTS
    }


def test_preset_with_overrides():
    config = RandomTransformerConfig.from_preset("base", d_model=256, dropout=0.2)
    assert (config.d_model, config.dropout, config.d_k) == (256, 0.2, 32)


def test_unknown_preset_raises():
    with pytest.raises(ValueError, match=r"preset must be one of 'base'.* got 'huge'"):
        RandomTransformerConfig.from_preset("huge")


def test_the_small_presets():
    tiny = RandomTransformerConfig.from_preset("tiny")
    assert (tiny.encoder_layers, tiny.decoder_layers, tiny.d_model, tiny.d_ff) == (4, 4, 128, 256)
    assert (tiny.num_heads, tiny.dropout) == (4, 0.3)
    iwslt = RandomTransformerConfig.from_preset("iwslt")
    assert (iwslt.encoder_layers, iwslt.decoder_layers, iwslt.d_model, iwslt.d_ff) == (6, 6, 512, 1024)
    assert (iwslt.num_heads, iwslt.dropout) == (4, 0.3)
    blog = RandomTransformerConfig.from_preset("blog")
    assert (blog.d_model, blog.num_heads, blog.d_k, blog.d_v, blog.d_ff) == (4, 2, 3, 3, 8)
    assert (blog.encoder_layers, blog.decoder_layers, blog.vocab_size, blog.dropout) == (6, 6, 10, 0.0)
    assert (blog.attention_bias, blog.tie_word_embeddings, blog.lm_head_bias) == (False, False, True)


def test_deep_encoder_presets_have_the_widths_of_the_base_model_or_of_overrides():
    base = RandomTransformerConfig.from_preset("base")
    for name, layers, norm_order in (("6-2", (6, 2), "post"), ("12-1", (12, 1), "pre")):
        config = RandomTransformerConfig.from_preset(name)
        assert (config.encoder_layers, config.decoder_layers, config.norm_order) == (*layers, norm_order)
        assert (config.d_model, config.d_ff, config.num_heads) == (base.d_model, base.d_ff, base.num_heads)
        small = RandomTransformerConfig.from_preset(name, d_model=128, d_ff=256, num_heads=4, dropout=0.3)
        assert (small.encoder_layers, small.decoder_layers, small.d_k) == (*layers, 32)


@pytest.mark.parametrize(
    ("alias", "field", "value"),
    [
        ("hidden_size", "d_model", 128),
        ("num_attention_heads", "num_heads", 4),
        ("num_hidden_layers", "encoder_layers", 3),
    ],
)
def test_an_alias_sets_its_field(alias, field, value):
    config = RandomTransformerConfig(**{alias: value})
    assert config == RandomTransformerConfig(**{field: value})
    assert RandomTransformerConfig(**{alias: value, field: value}) == config


def test_derived_fields_follow_aliases():
    config = RandomTransformerConfig(hidden_size=128, num_attention_heads=4)
    assert (config.d_k, config.d_v, config.attention_scale) == (32, 32, 32**-0.5)
    config = RandomTransformerConfig(head_dim=16)
    assert (config.d_k, config.d_v, config.attention_scale) == (16, 16, 0.25)
    assert RandomTransformerConfig.from_preset("tiny", hidden_size=64).d_k == 16


@pytest.mark.parametrize(
    ("alias", "field", "value"),
    [
        ("hidden_size", "d_model", -5),
        ("hidden_size", "d_model", None),
        ("num_attention_heads", "num_heads", "8"),
        ("num_hidden_layers", "encoder_layers", 0),
        ("head_dim", "d_k", -1),
    ],
)
def test_alias_is_validated_as_its_field(alias, field, value):
    with pytest.raises(ValueError, match=f"{field} must be .* got {value!r}"):
        RandomTransformerConfig(**{alias: value})


@pytest.mark.parametrize("values", [{"d_model": 512, "hidden_size": 128}, {"num_heads": 4, "num_attention_heads": 8}])
def test_alias_that_contradicts_its_field_raises(values, tmp_path):
    (field, value), (alias, other) = values.items()
    message = f"{alias} is an alias of {field} and must equal {field}={value}, got {other}"
    with pytest.raises(ValueError, match=message):
        RandomTransformerConfig(**values)
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        RandomTransformerConfig.from_pretrained(tmp_path)


def test_aliases_in_a_file_are_saved_as_fields(tmp_path):
    values = {"model_type": "random_transformer", "hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = AutoConfig.from_pretrained(tmp_path)
    assert config == RandomTransformerConfig(d_model=64, num_heads=4, encoder_layers=2)
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_bytes())
    assert (saved["d_model"], saved["d_k"]) == (64, 16)
    assert not set(RandomTransformerConfig.attribute_map) & set(saved)
    assert AutoConfig.from_pretrained(tmp_path).to_dict() == config.to_dict()


@pytest.mark.parametrize("load", [AutoConfig.from_pretrained, RandomTransformerConfig.from_pretrained])
def test_overrides_of_a_saved_configuration(load, tmp_path):
    RandomTransformerConfig(num_heads=4, d_v=7).save_pretrained(tmp_path)
    config, unused = load(tmp_path, hidden_size=64, num_heads=2, foo=1, return_unused_kwargs=True)
    assert (config.d_model, config.d_k, config.attention_scale) == (64, 32, 32**-0.5)
    assert (config.d_v, unused) == (7, {"foo": 1}), "the file's own value stays"
    assert load(tmp_path, head_dim=5).d_k == 5
    for wrong in ({"hidden_size": -5}, {"d_model": 64, "hidden_size": 32}, {"vocab_size": 2}):
        with pytest.raises(ValueError, match="must"):
            load(tmp_path, **wrong)


def test_field_set_later_is_validated_on_save(tmp_path):
    config = copy.deepcopy(RandomTransformerConfig())
    config.hidden_size = 256
    assert config.d_model == 256
    config.num_attention_heads = -1
    with pytest.raises(ValueError, match="num_heads must be a positive integer of at most 16777216, got -1"):
        config.save_pretrained(tmp_path)


# Fields of the superclass. transformers 5.17 validates the types of some of them, and raises its own error.
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("encoder_layers", 10**12),
        ("d_model", 10**12),
        ("eos_token_id", []),
        ("pad_token_id", [0]),
        ("architectures", "RandomTransformerModel"),
        ("chunk_size_feed_forward", "x"),
        ("custom_pipelines", [1]),
        ("dtype", "no dtype"),
        ("dtype", "int64"),
        ("torch_dtype", 7),
        ("id2label", {"x": "y"}),
        ("is_encoder_decoder", 7),
        ("layer_types", [1]),
        ("num_labels", -1),
        ("output_attentions", "x"),
    ],
)
def test_fields_of_transformers_are_validated(field, value):
    with pytest.raises((ValueError, StrictDataclassFieldValidationError), match=f"{field} must be|field '{field}'"):
        RandomTransformerConfig(**{field: value})


def test_valid_dtypes_and_labels():
    for dtype in ("bfloat16", torch.float16, None):
        RandomTransformerConfig(dtype=dtype)
    assert RandomTransformerConfig(id2label={"0": "a", "1": "b", "2": "c"}).num_labels == 3
    assert RandomTransformerConfig(num_labels=5).num_labels == 5
