"""Parses flags of the command line and arguments of recipes, which are fields of dataclasses.

Each field is declared and documented once. The help of a flag is the field's entry in the docstring of its class.
Fields of transformers have the help in their metadata. The metadata of a documented field are settings of
`add_argument`, or `positional`.
"""

import argparse
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from itertools import takewhile
from pathlib import Path
from typing import Any, NewType, NoReturn, get_args, get_origin

from transformers import HfArgumentParser

from ..base.flags import finite_number, from_values
from ..base.streams import is_readable
from ..configuration_random_transformer import did_you_mean

InputFile = NewType("InputFile", Path)  # the type of a field, see `existing_file`
MARK = "\0"  # begins a text after `--` that begins with a dash: no argument of a program has this character
# Name of an argument in other tools → flags of this package. The flag that the command has is suggested.
OTHER_NAMES = {
    "batch_size": "max_tokens_per_batch",
    "beam": "num_beams",
    "beam_size": "num_beams",
    "beams": "num_beams",
    "d_model": "config_overrides",
    "dataset": "dataset_name",
    "dictionary": "train_file",  # of recipes with stages only, as the parent
    "dropout": "config_overrides",
    "epochs": "num_train_epochs",
    "gpu": "device",
    "input": "source_file train_file",
    "lr": "learning_rate",
    "max_length": "max_source_length",
    "model": "model_name_or_path",
    "num_workers": "dataloader_num_workers",
    "optimizer": "optim",
    "output": "output_dir",
    "output_dir": "output",
    "parent": "model_name_or_path",
    "source": "source_file",
    "src": "source_file",
    "steps": "max_steps",
    "target": "target_file",
    "tgt": "target_file",
    "vocab": "vocab_size",
    "warmup": "warmup_steps",
}
# An argument in a docstring.
DOCUMENTED_ARGUMENT = re.compile(r"^    (\w+): (.*?)(?=^    [\w*]+: |^\S|\Z)", re.M | re.S)


class Several(argparse.Action):
    """Stores the values of a flag. A repeated flag is an error, since argparse would keep its last values only."""

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: str | None = None) -> None:
        if hasattr(namespace, self.dest):
            parser.error(f"{option_string} must be given once, with all of its values, got {values} in a second one.")
        setattr(namespace, self.dest, values)


class Parser(HfArgumentParser):
    """A parser of the fields of dataclasses. Its help shows the defaults, and its errors are a `ValueError`.

    An integer of a documented field must be positive, a float finite and an `InputFile` a file that exists, unless the
    metadata specify another type. A documented field that may be `None`, but has another default, accepts `off`.

    Args:
        program: the name in usage and errors.
        description: the help of the command, with its line breaks.
        classes: the dataclasses.
        groups: the headings of the help with the names of the arguments below them, separated by spaces. Other
            arguments are not in the help. `None` for a help without headings.
    """

    def __init__(
        self,
        program: str,
        description: str | None = None,
        classes: Sequence[Any] = (),
        groups: Mapping[str, str] | None = None,
    ):
        self.classes = classes
        self.helps: dict[str, str] = {}
        self.metadata: dict[str, Mapping[str, Any]] = {}
        for dataclass in classes:
            self.helps |= help_texts(*reversed(dataclass.__mro__[:-1]))
            self.metadata |= {entry.name: entry.metadata for entry in fields(dataclass)}
        self.has_positional = any("positional" in metadata for metadata in self.metadata.values())
        self.groups = groups
        self.group_of: dict[str, Any] = {}  # the heading of each argument
        super().__init__(
            classes,
            prog=program,
            usage=None if groups is None else "%(prog)s [arguments]",
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        flag = names[0]  # `HfArgumentParser` adds a spelling with hyphens
        name = settings.get("dest") or flag.lstrip("-")
        if name in self.helps:
            settings = self.documented_settings(name, settings)
        if settings.pop("positional", False):
            flag = name
            if not settings.pop("required", False):
                settings["nargs"] = "*"
        if settings.get("nargs") == "+":
            settings.setdefault("action", Several)
        text = settings.get("help")
        default = settings.get("default")
        has_default = default not in (None, False, "", [], (), argparse.SUPPRESS)
        if text and has_default and not re.search(r"\((the )?default", text):
            settings["help"] = f"{text} (default: {default})"
        settings["default"] = argparse.SUPPRESS  # the dataclass has the default
        if flag == "-h":
            return super().add_argument(*names, **settings)
        if self.groups is None:
            return super().add_argument(flag, **settings)
        if not self.group_of:
            for heading, members in self.groups.items():
                self.group_of |= dict.fromkeys(members.split(), self.add_argument_group(heading))
        if name not in self.group_of or flag != f"--{name}":
            return super().add_argument(flag, **settings | {"help": argparse.SUPPRESS})
        return self.group_of[name].add_argument(flag, **settings)

    def documented_settings(self, name: str, settings: dict[str, Any]) -> dict[str, Any]:
        """The settings of a documented field, including those that `HfArgumentParser` overwrites in the metadata."""
        text = self.helps[name]
        kind = settings.get("type")
        if settings.get("const") is True and self.has_positional:
            # A flag with an optional value would take the positional argument that follows.
            settings = {"action": "store_true"}
        elif kind is not None:  # the flag `--no_…` of a Boolean has no type
            if get_origin(kind) is Sequence:
                [kind] = get_args(kind)
                settings["nargs"] = "+"
            settings |= {"type": ARGUMENT_TYPES.get(kind, kind), **self.metadata[name]}
            if "`None`" in text and settings.get("default") is not None:
                settings["type"] = off_or(settings["type"])
                text = text.replace("`None`", "off")
        return {**settings, "help": plain(text)}

    def values(self, argv: Iterable[str]) -> dict[str, Any]:
        """The values of the arguments that are given, by name.

        Raises:
            ValueError: an argument does not exist, or its value is invalid.
        """
        arguments = [*argv]
        if "--" in arguments:
            # If flags and texts are mixed, argparse reads a text after `--` that starts with `-` as a flag.
            index = arguments.index("--")
            arguments[index:] = [f"{MARK}{text}" if text.startswith("-") else text for text in arguments[index + 1 :]]
        namespace, unknown = self.parse_known_intermixed_args(arguments)
        if unknown:
            values = " ".join(without_mark(unknown))
            self.error(f"arguments must be flags of --help and their values, got {values}.")
        return {name: without_mark(value) for name, value in vars(namespace).items()}

    def parse(self, argv: Iterable[str]) -> Any:
        """An object of the only dataclass.

        Raises:
            ValueError: an argument does not exist, its value is invalid, or arguments contradict each other.
        """
        [cls] = self.classes
        return from_values(cls, self.values(argv))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parse arguments; argparse calls this method in all cases. Unknown flags are reported before other errors."""
        args = sys.argv[1:] if args is None else [*args]
        for index, argument in enumerate(takewhile(lambda argument: argument != "--", args)):
            name, equals, value = argument.partition("=")
            if name.startswith("--") and " " not in name:
                flag = "--" + name[2:].replace("-", "_")  # hyphens are another spelling
                if flag not in self._option_string_actions:  # includes the flags of argument groups
                    self.error(f"arguments must be among those of --help, got {name}.{self.suggestion(flag[2:])}")
                args[index] = flag + equals + value
        return super().parse_known_args(args, namespace)

    def suggestion(self, name: str) -> str:
        """A question after an error about an unknown argument, if the help has a similar one."""
        actions = [action for action in self._actions if action.option_strings and action.help != argparse.SUPPRESS]
        names = [action.option_strings[0].removeprefix("--") for action in actions]
        if name in OTHER_NAMES:
            names = [flag for flag in OTHER_NAMES[name].split() if flag in names]
            return f" Did you mean --{names[0]}?" if names else ""
        names = [flag for flag in names if flag.startswith(name[:1])]  # never suggest "report" for "port"
        return did_you_mean(name, names, prefix="--")

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def without_mark(value: Any) -> Any:
    """A value without `MARK`."""
    if isinstance(value, list):
        return [without_mark(item) for item in value]
    return value.removeprefix(MARK) if isinstance(value, str) else value


def all_from_values(classes: Iterable[type], values: Mapping[str, Any]) -> tuple[Any, ...]:
    """An object of each dataclass; see `from_values`."""
    return tuple(from_values(cls, values) for cls in classes)


def help_texts(*documented: Any) -> dict[str, str]:
    """The entries of arguments in the docstrings of functions or dataclasses."""
    texts = {}
    for item in documented:
        for name, text in DOCUMENTED_ARGUMENT.findall(inspect.cleandoc(item.__doc__ or "")):
            texts[name] = " ".join(text.split()).rstrip(".")
    return texts


def plain(text: str) -> str:
    """The text of a docstring as help, without Markdown."""
    return text.replace("`", "").replace("%", "%%")


# Types of arguments


def positive_integer(text: str) -> int:
    """Argument type: an integer of at least 1. Raises an `ArgumentTypeError` for another text."""
    if not text.isdecimal() or not 1 <= int(text) <= sys.maxsize:
        raise argparse.ArgumentTypeError(f"must be a positive integer, got {text!r}.")
    return int(text)


def existing_file(text: str) -> Path:
    """Argument type: an existing file, which may be a pipe, or `-`."""
    if not is_readable(text):
        raise argparse.ArgumentTypeError(f"must be a file that exists, got {text!r}.")
    return Path(text)


# The type of a documented field → the type of its argument.
ARGUMENT_TYPES: dict[Any, Callable[[str], Any]] = {
    int: positive_integer,
    float: finite_number,
    InputFile: existing_file,
}


def off_or(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Argument type: the values of another type, or `None` for `off`."""

    def parse_or_off(text: str) -> Any:
        try:
            return None if text == "off" else parse(text)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{error} 'off' is allowed too.") from error

    return parse_or_off
