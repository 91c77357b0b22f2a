"""The configuration: defaults, presets, aliases and validation."""

import copy
import json
import re
from functools import partial

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig

import modeling_random_transformer as package
from modeling_random_transformer import RandomTransformerConfig
from modeling_random_transformer.configuration_random_transformer import MODEL_CLASSES
from tests.helpers.models import tiny_config

SIZE, RATE, FLAG, TOKEN = "an integer from 1 to 16777216", "at least 0 and below 1", "True or False", "0 to 36999"
# (field or argument, value, allowed values in the message)
INVALID_VALUES = [
    ("vocab_size", 0, SIZE),
    ("d_model", 512.0, SIZE),
    ("d_model", 511, "multiple of num_heads"),
    ("d_model", 10**12, SIZE),
    ("num_heads", True, SIZE),
    ("encoder_layers", 10**12, "an integer from 1 to 4096"),
    ("d_k", 0, SIZE),
    ("activation_function", "rleu", "'relu'"),
    ("activation_function", ["relu"], "'relu'"),
    ("dropout", 1.0, RATE),
    ("attention_dropout", "0.1", RATE),
    ("activation_dropout", float("nan"), RATE),
    ("norm_order", "middle", "'post', 'pre'"),
    ("final_layer_norm", "yes", FLAG),
    ("layer_norm_eps", 0, "positive number"),
    ("attention_scale", float("inf"), "positive number"),
    ("position_embedding", "rotary", "'sinusoidal', 'learned', 'none'"),
    ("position_offset", -1, "an integer from 0 to"),
    ("pad_token_id", 37000, TOKEN),
    ("eos_token_id", [2, 40000], TOKEN),
    ("eos_token_id", [], TOKEN),
    ("decoder_start_token_id", "1", TOKEN),
    # Aliases
    ("hidden_size", -5, SIZE),
    # Fields and arguments of transformers
    ("architectures", "RandomTransformerModel", "list of strings"),
    ("custom_pipelines", [1], "dictionary"),
    ("dtype", "int64", "floating-point dtype"),
    ("id2label", {"x": "y"}, "dictionary of labels"),
    ("layer_types", [1], "'full_attention'"),
    ("output_attentions", "x", FLAG),
]


@pytest.mark.parametrize(("field", "value", "requirement"), INVALID_VALUES)
def test_invalid_value_raises(field, value, requirement):
    """transformers 5.17 validates the types of some of its own fields, and raises its own error."""
    with pytest.raises((ValueError, StrictDataclassFieldValidationError)) as error:
        RandomTransformerConfig(**{field: value})
    if isinstance(error.value, ValueError):
        assert str(error.value).startswith(f"{RandomTransformerConfig.attribute_map.get(field, field)} must be")
        assert str(error.value).endswith(f"got {value!r}.")
        assert requirement in str(error.value)


def test_odd_d_model_raises_for_sinusoids_only():
    odd = {"d_model": 15, "num_heads": 3}
    with pytest.raises(ValueError, match=r"d_model must be even .* got 15"):
        RandomTransformerConfig(**odd)
    assert RandomTransformerConfig(position_embedding="learned", **odd).d_k == 5


def test_unset_fields_are_derived_from_others():
    config = RandomTransformerConfig(d_model=12, num_heads=3, d_k=5)
    assert (config.d_v, config.attention_scale) == (5, 5**-0.5)
    assert RandomTransformerConfig(norm_order="pre").final_layer_norm is True
    assert RandomTransformerConfig(norm_order="pre", final_layer_norm=False).final_layer_norm is False
    assert RandomTransformerConfig(d_model=10, num_heads=4, d_k=3, d_v=2).d_v == 2


def test_special_ids_may_be_none():
    config = RandomTransformerConfig(pad_token_id=None, bos_token_id=None, eos_token_id=None)
    assert config.pad_token_id is None


def test_preset_with_overrides():
    config = RandomTransformerConfig.from_preset("base", d_model=256, dropout=0.2)
    assert (config.d_model, config.dropout, config.d_k) == (256, 0.2, 32)
    assert RandomTransformerConfig.from_preset("tiny", hidden_size=64).d_k == 16
    with pytest.raises(ValueError, match=r"preset must be one of 'base'.* got 'huge'"):
        RandomTransformerConfig.from_preset("huge")


@pytest.mark.parametrize(
    ("name", "similar"),
    [("dmodel", "d_model"), ("n_layers", "encoder_layers"), ("hiden_size", "hidden_size"), ("n_heads", "num_heads")],
)
@pytest.mark.parametrize("create", [RandomTransformerConfig, partial(RandomTransformerConfig.from_preset, "tiny")])
def test_unknown_fields_raise(create, name, similar):
    message = f"arguments must be fields of the configuration, got {name!r}. Did you mean {similar}?"
    with pytest.raises(ValueError, match=re.escape(message)):
        create(**{name: 2})
    with pytest.raises(ValueError, match=r"fields of the configuration, got 'xyz'\.$"):
        create(xyz=2)


def test_unknown_fields_of_saved_configurations_are_attributes(tmp_path):
    RandomTransformerConfig(attributes={"comment": "small", "n_heads": 3}).save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path, comment="large", d_model=64)
    assert (config.comment, config.n_heads, config.num_heads, config.d_model) == ("large", 3, 8, 64)
    assert RandomTransformerConfig.from_dict(config.to_dict()) == config
    assert copy.deepcopy(config) == config
    assert not hasattr(config, "attributes")


def test_arguments_of_transformers_are_known(tmp_path):
    config = RandomTransformerConfig(num_labels=3, torch_dtype="float16", attn_implementation="eager")
    assert (config.num_labels, config.dtype) == (3, torch.float16)
    config.save_pretrained(tmp_path)
    saved = json.loads((tmp_path / "config.json").read_bytes())
    assert RandomTransformerConfig(**saved).to_dict() == RandomTransformerConfig.from_pretrained(tmp_path).to_dict()


SIZES = ("encoder_layers", "decoder_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "dropout", "norm_order")
SMALL_PRESETS = {
    "tiny": (4, 4, 128, 256, 4, 32, 32, 0.3, "post"),
    "iwslt": (6, 6, 512, 1024, 4, 128, 128, 0.3, "post"),
    "6-2": (6, 2, 512, 2048, 8, 64, 64, 0.1, "post"),
    "12-1": (12, 1, 512, 2048, 8, 64, 64, 0.1, "pre"),
    "blog": (6, 6, 4, 8, 2, 3, 3, 0.0, "post"),
}


@pytest.mark.parametrize("name", SMALL_PRESETS)
def test_presets_that_are_not_in_table_3(name):
    config = RandomTransformerConfig.from_preset(name)
    assert tuple(getattr(config, field) for field in SIZES) == SMALL_PRESETS[name]
    if name == "blog":
        assert (config.vocab_size, config.attention_bias) == (10, False)
        assert (config.tie_word_embeddings, config.lm_head_bias) == (False, True)


def test_aliases_set_and_return_their_fields():
    config = RandomTransformerConfig(hidden_size=128, num_attention_heads=4, num_hidden_layers=3, decoder_layers=5)
    assert config == RandomTransformerConfig(d_model=128, num_heads=4, encoder_layers=3, decoder_layers=5)
    assert (config.hidden_size, config.num_attention_heads, config.num_hidden_layers) == (128, 4, 3)
    assert config.get_text_config(decoder=True).num_hidden_layers == 5
    assert (config.d_k, config.d_v, config.attention_scale) == (32, 32, 32**-0.5)
    assert RandomTransformerConfig(head_dim=16).attention_scale == 0.25


def test_an_alias_that_contradicts_its_field_raises(tmp_path):
    values = {"d_model": 512, "hidden_size": 128}
    message = "d_model and its alias must have one value, got 512 and 128"
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


def test_overrides_of_a_saved_configuration(tmp_path):
    RandomTransformerConfig(num_heads=4, d_v=7).save_pretrained(tmp_path)
    load = AutoConfig.from_pretrained
    config, unused = load(tmp_path, hidden_size=64, num_heads=2, foo=1, return_unused_kwargs=True)
    assert (config.d_model, config.d_k, config.attention_scale) == (64, 32, 32**-0.5)
    assert (config.d_v, unused) == (7, {"foo": 1}), "the file's own value stays"
    assert load(tmp_path, head_dim=5).d_k == 5
    for wrong in ({"hidden_size": -5}, {"d_model": 64, "hidden_size": 32}, {"vocab_size": 2}):
        with pytest.raises(ValueError, match="must"):
            load(tmp_path, **wrong)


def test_field_set_later_is_validated_on_save(tmp_path):
    config = copy.deepcopy(RandomTransformerConfig())
    config.num_attention_heads = -1
    with pytest.raises(ValueError, match="num_heads must be an integer from 1 to 16777216, got -1"):
        config.save_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [("norm_order", "Pre"), ("position_embedding", "rotary"), ("sinusoid_layout", "halves"), ("d_model", 63)],
)
def test_field_set_later_is_validated_by_the_model(field, value):
    config = tiny_config()
    setattr(config, field, value)
    for name in MODEL_CLASSES.values():
        with pytest.raises(ValueError, match=f"{field} must be .* got {value!r}"):
            getattr(package, name)(config)


def test_valid_dtypes_and_labels():
    for dtype in ("bfloat16", torch.float16, None):
        RandomTransformerConfig(dtype=dtype)
    assert RandomTransformerConfig(id2label={"0": "a", "1": "b", "2": "c"}).num_labels == 3
