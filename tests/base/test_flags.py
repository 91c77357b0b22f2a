import argparse
from dataclasses import dataclass

import pytest

from modeling_random_transformer.base.flags import finite_number, from_values, to_flags


@dataclass
class Size:
    size: int = 1


@dataclass
class Names:
    names: tuple[str, ...] = ()


def test_objects_have_the_values_of_their_fields_and_the_defaults_of_others():
    assert from_values(Size, {"size": 4, "port": 7}) == Size(4)
    assert from_values(Names, {"size": 4, "port": 7}) == Names(())


def test_flags_of_values():
    flags = to_flags({"size": 4, "names": ["a", "b"], "limit": None})
    assert flags == [["--size", "4"], ["--names", "a", "b"]]
    # YAML reads `no` without quotes as false.
    assert to_flags({"save_strategy": False, "kwargs": {"a": 1}}) == [
        ["--save_strategy", "no"],
        ["--kwargs", '{"a": 1}'],
    ]


@pytest.mark.parametrize("text", ["nan", "inf", "1e999", "one", ""])
def test_numbers_that_are_not_finite_are_an_error(text):
    with pytest.raises(argparse.ArgumentTypeError, match="must be a finite number, got"):
        finite_number(text)
