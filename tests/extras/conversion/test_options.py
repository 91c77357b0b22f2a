"""Options of other implementations: allowed values, defaults, conversions and errors."""

import pytest
import torch

from modeling_random_transformer.extras.conversion.options import (
    OPTION_KINDS,
    Kind,
    choice_kind,
    equal,
    flatten,
    read_format,
    read_options,
)

TABLE = """
unsupported = ["adaptive"]

[names]
"{stack}.norm.{p}" = "model.{stack}.layer_norm.{p}"

[only]
heads = 4

[options]
layers = {kind = "size", fields = ["encoder_layers"]}
dropout = {kind = "rate", default = 0.1}
activation = {choices = {swish = "silu"}, optional = true}
parity = {kind = "even", default = 2}

[same]
width = "encoder_width"
"""
EVEN = Kind("even", lambda value: value % 2 == 0)


@pytest.fixture
def table(tmp_path):
    (tmp_path / "format.toml").write_text(TABLE)
    return read_format(str(tmp_path / "format.py"), even=EVEN)


@pytest.mark.parametrize(
    ("kind", "accepted", "rejected"),
    [
        (OPTION_KINDS["size"], [1, 512], [0, -1, 1.0, True, "1"]),
        (OPTION_KINDS["length"], [1, 2**20], [0, 2**20 + 1]),
        (OPTION_KINDS["flag"], [True, False], [0, 1, "true", None]),
        (OPTION_KINDS["rate"], [0, 0.0, 0.5], [-0.1, 1.5, "0.1", float("nan")]),
        (OPTION_KINDS["off"], [False, 0, "", []], [True, 1, "on"]),
        (OPTION_KINDS["text"], ["", "relu"], [1, b"relu"]),
        (equal(3), [3], [2, "3"]),
        (choice_kind({"relu": "relu", "swish": "silu"}), ["relu", "swish"], ["silu", 1, ["relu"]]),
    ],
)
def test_values_of_a_kind(kind, accepted, rejected):
    assert all(kind.accepts(value) for value in accepted)
    assert not any(kind.accepts(value) for value in rejected)


def test_values_are_converted_and_defaults_are_filled_in(table):
    stored = {"layers": 3, "dropout": None, "unrelated": "kept"}
    expected = {"adaptive": None, "heads": 4, "layers": 3, "dropout": 0.1, "activation": None, "parity": 2}
    assert read_options(stored, table) == {**expected, "unrelated": "kept"}
    assert read_options({**stored, "activation": "swish"}, table)["activation"] == "silu"
    assert OPTION_KINDS["pre_norm"].convert(True) == "pre"
    assert OPTION_KINDS["negated"].convert(True) is False


def test_a_format_has_the_tables_of_its_file(table):
    assert table.names == {"{stack}.norm.{p}": "model.{stack}.layer_norm.{p}"}
    assert table.same == {"width": "encoder_width"}
    assert [option.fields for option in table.options if option.name == "layers"] == [["encoder_layers"]]


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({}, "layers must be .*, got None"),
        ({"layers": "3"}, "layers must be .*, got '3'"),
        ({"layers": 3, "adaptive": True}, "adaptive must be off, got True"),
        ({"layers": 3, "heads": 2}, "heads must be 4, got 2"),
        ({"layers": 3, "activation": "relu"}, "activation must be 'swish', got 'relu'"),
        ({"layers": 3, "parity": 1}, "parity must be even, got 1"),
        ({"layers": 3, "width": 4, "encoder_width": 8}, "width must be encoder_width=8, got 4"),
        ({"layers": torch.ones(2)}, "layers must be a plain value, got "),
        ({"layers": [[1], [2]]}, "layers must be .*, got a list"),
    ],
)
def test_other_values_are_errors(table, stored, message):
    with pytest.raises(ValueError, match=message):
        read_options(stored, table)


def test_nested_options_have_paths():
    assert flatten({"model": {"encoder": {"layers": 3}, "tied": True}, "name": "x"}) == {
        "model.encoder.layers": 3,
        "model.tied": True,
        "name": "x",
    }


def test_flattening_stops_at_the_fifth_level():
    endless = {"value": 1}
    endless["next"] = endless
    flat = flatten(endless)
    assert flat["next.next.next.next.value"] == 1
    assert flat["next.next.next.next.next"] is endless
