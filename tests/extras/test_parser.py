"""Dataclasses as flags: values, defaults, help and errors."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest

from modeling_random_transformer.base.flags import to_flags
from modeling_random_transformer.extras.parser import Parser, all_from_values, positive_integer


@dataclass
class Options:
    """Options.

    Args:
        size: how many of `them`;
            100% by default.
        limit: the least; `None` for no limit.
        names: what they are called: several.
    """

    size: int = 3
    limit: float | None = 0.5
    names: Sequence[str] | None = None


def test_options_of_a_dataclass_have_its_defaults_and_its_documentation():
    parser = Parser("program", classes=[Options])
    assert vars(parser.parse([])) == {"size": 3, "limit": 0.5, "names": None}
    argv = ["--size", "4", "--limit", "off", "--names", "a", "b"]
    assert parser.values(argv) == vars(parser.parse(argv)) == {"size": 4, "limit": None, "names": ["a", "b"]}
    assert parser.values(["--size=4"]) == {"size": 4}
    for flag, message in (("--limit", "must be a finite number"), ("--size", "must be a positive integer")):
        for value in ("many", "nan", "inf"):
            with pytest.raises(ValueError, match=f"argument {flag}: {message}, got '{value}'."):
                parser.values([flag, value])
    shown = " ".join(parser.format_help().split())
    assert "how many of them; 100% by default (default: 3)" in shown
    assert "the least; off for no limit (default: 0.5)" in shown


@dataclass
class Command:
    """Options of a command.

    Args:
        texts: what to translate
        is_fast: whether it is fast
        is_shown: whether it is shown
        port: any number
    """

    texts: list[str] = field(default_factory=list, metadata={"positional": True})
    is_fast: bool = False
    is_shown: bool = True
    port: int = field(default=0, metadata={"type": int})


def test_positional_texts_and_flags_in_any_order():
    parser = Parser("program", classes=[Command])
    assert parser.values([]) == {}
    command = parser.parse(["--is-fast", "a", "--port", "-1", "b"])
    assert (command.texts, command.is_fast, command.port) == (["a", "b"], True, -1)


def test_a_boolean_without_positional_arguments_has_an_optional_value():
    @dataclass
    class Training:
        """Options.

        Args:
            bf16: whether to use it
            is_shown: whether it is shown
        """

        bf16: bool = False
        is_shown: bool = True

    parser = Parser("program", classes=[Training])
    for argv, values in (
        (["--bf16"], {"bf16": True}),
        (["--bf16", "false"], {"bf16": False}),
        (["--no_is_shown"], {"is_shown": False}),
        (["--no-is-shown"], {"is_shown": False}),
    ):
        assert parser.values(argv) == values


def test_groups_of_the_help():
    parser = Parser("program", classes=[Options], groups={"first": "names size missing", "empty": "other"})
    shown = " ".join(parser.format_help().split())
    assert "first: --size SIZE" in shown
    assert "usage: program [arguments]" in shown
    assert "--limit" not in shown
    assert "empty" not in shown
    assert parser.values(["--limit", "2"]) == {"limit": 2.0}


def test_several_classes_and_flags_of_values():
    values = {"size": 4, "names": ["a", "b"], "limit": None, "port": 7}
    flags = to_flags(values)
    assert flags == [["--size", "4"], ["--names", "a", "b"], ["--port", "7"]]
    options, command = all_from_values([Options, Command], {**values, "limit": 1.5})
    assert (options, command.port) == (Options(4, 1.5, ["a", "b"]), 7)


def test_texts_that_begin_with_dashes_are_arguments_after_two_dashes():
    parser = Parser("program")
    parser.add_argument("texts", nargs="*")
    assert parser.parse_args(["--", "--hello"]).texts == ["--hello"]


@pytest.mark.parametrize(
    ("arguments", "texts"),
    [
        (["--", "--output", "a"], ["--output", "a"]),
        (["--", "a", "--output", "b"], ["a", "--output", "b"]),
        (["a", "--", "-x", "-y"], ["a", "-x", "-y"]),
        (["--", "a", "--", "b"], ["a", "--", "b"]),
        (["--"], None),
    ],
)
def test_flags_after_two_dashes_are_texts(arguments, texts):
    parser = Parser("program")
    parser.add_argument("--output")
    parser.add_argument("texts", nargs="*")
    values = parser.values(["--output", "file", *arguments])
    assert values["output"] == "file"
    assert values.get("texts") == texts


def test_the_smallest_positive_integer_is_1():
    assert positive_integer("1") == 1
    with pytest.raises(argparse.ArgumentTypeError, match="must be a positive integer, got '0'"):
        positive_integer("0")


def test_integers_of_more_than_64_bits():
    with pytest.raises(argparse.ArgumentTypeError, match=r"must be a positive integer, got '9223372036854775808'"):
        positive_integer(str(2**63))
    assert positive_integer(str(2**63 - 1)) == 2**63 - 1
