"""Options of other implementations: allowed values, defaults, conversions and errors."""

import pytest
import torch

from modeling_random_transformer.extras.conversion.options import (
    FLAG,
    LENGTH,
    NEGATED,
    OFF,
    PRE_NORM,
    RATE,
    SIZE,
    TEXT,
    Option,
    equal,
    flatten,
    off,
    one_of,
    only,
    read_options,
)


@pytest.mark.parametrize(
    ("kind", "accepted", "rejected"),
    [
        (SIZE, [1, 512], [0, -1, 1.0, True, "1"]),
        (LENGTH, [1, 2**20], [0, 2**20 + 1]),
        (FLAG, [True, False], [0, 1, "true", None]),
        (RATE, [0, 0.0, 0.5], [-0.1, 1.5, "0.1", float("nan")]),
        (OFF, [False, 0, "", []], [True, 1, "on"]),
        (TEXT, ["", "relu"], [1, b"relu"]),
        (equal(3), [3], [2, "3"]),
        (one_of({"relu": "relu", "swish": "silu"}), ["relu", "swish"], ["silu", 1, ["relu"]]),
    ],
)
def test_values_of_a_kind(kind, accepted, rejected):
    assert all(kind.accepts(value) for value in accepted)
    assert not any(kind.accepts(value) for value in rejected)


def test_values_are_converted_and_defaults_are_filled_in():
    table = [
        Option("layers", SIZE, fields=("encoder_layers",)),
        Option("dropout", RATE, 0.1),
        Option("activation", one_of({"swish": "silu"}), None),
        Option("normalize_before", PRE_NORM, False),
        Option("no_bias", NEGATED, False),
    ]
    stored = {"layers": 3, "dropout": None, "normalize_before": True, "unrelated": "kept"}
    assert read_options(stored, table) == {
        "layers": 3,
        "dropout": 0.1,
        "activation": None,
        "normalize_before": "pre",
        "no_bias": True,
        "unrelated": "kept",
    }
    assert read_options({**stored, "activation": "swish"}, table)["activation"] == "silu"


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({}, "layers must be .*, got None"),
        ({"layers": "3"}, "layers must be .*, got '3'"),
        ({"layers": 3, "adaptive": True}, "adaptive must be off, got True"),
        ({"layers": 3, "heads": 2}, "heads must be 4, got 2"),
        ({"layers": 3, "width": 4, "encoder_width": 8}, "width must be encoder_width=8, got 4"),
        ({"layers": torch.ones(2)}, "layers must be a plain value, got "),
        ({"layers": [[1], [2]]}, "layers must be .*, got a list"),
    ],
)
def test_other_values_are_errors(stored, message):
    table = [Option("layers", SIZE), only("heads", 4), *off(["adaptive"])]
    with pytest.raises(ValueError, match=message):
        read_options(stored, table, same=[("width", "encoder_width")])


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
