"""docs/compatibility.md lists every private name of other libraries that the package uses."""

import ast
import importlib
import inspect
import pkgutil
import re
from functools import cache
from pathlib import Path

import pytest

import modeling_random_transformer

PACKAGE = Path(modeling_random_transformer.__file__).parent
ROOT = PACKAGE.parent
PAGE = ROOT / "docs" / "compatibility.md"
STANDARD_LIBRARY = {"_actions", "_exit", "_option_string_actions", "_replace"}  # argparse, os, named tuples
# Set by Python, PyTorch and transformers.
GENERATED = {"_abc_impl", "_auto_class", "_backward_cls", "_is_protocol", "_registered_impl"}
SUFFIXES = {"_counter", "_per_second", "_pre"}  # strings that are not names
OPTIONS = {"_all_transform", "_core", "_name", "_reconstruct"}  # in checkpoints of OpenNMT-py, fairseq and NumPy


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def trees():
    return [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")]


def own_names(nodes):
    """What the package itself defines."""
    for node in nodes:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and is_self(node.value):
            yield node.attr


def is_self(node):
    return isinstance(node, ast.Name) and node.id == "self"


def used_names():
    """Private attributes that the package does not define, private imports, and strings such as those of `getattr`."""
    nodes = [node for tree in trees() for node in ast.walk(tree)]
    defined_names = set(own_names(nodes))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    imports = {
        alias.name for node in nodes if isinstance(node, ast.ImportFrom) and not node.level for alias in node.names
    }
    names = {name for name in attributes - defined_names | imports if is_private(name)} | strings(nodes)
    return names - STANDARD_LIBRARY - SUFFIXES - OPTIONS


def strings(nodes):
    """String constants that may be private names, except parts of f-strings and names of the package's classes."""
    parts = {part for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    classes = {node.name for node in nodes if isinstance(node, ast.ClassDef)}
    constants = (node.value for node in nodes if isinstance(node, ast.Constant) and node not in parts)
    names = {value for value in constants if isinstance(value, str) and re.fullmatch(r"_[A-Za-z]\w*", value)}
    return names - classes


def shared_names():
    """Private methods and attributes that classes of the package have in common with other libraries' base classes."""
    for module in pkgutil.walk_packages([str(PACKAGE)], f"{PACKAGE.name}."):
        if module.name.endswith("__main__"):
            continue
        for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if kind.__module__.startswith(PACKAGE.name):
                foreign = [base for base in kind.__mro__ if not base.__module__.startswith(PACKAGE.name)]
                names = set().union(*map(attributes_of, foreign))
                yield from (name for name in attributes_of(kind) if is_private(name) and name in names)


@cache
def attributes_of(kind):
    """The attributes that a class defines, and those of its instances that its methods use."""
    try:
        source = inspect.getsource(kind)
    except (OSError, TypeError):  # a built-in or generated class
        source = ""
    return set(vars(kind)) | set(re.findall(r"\bself\.(\w+)", source))


def listed():
    """The names in the page's table, and the test of each."""
    rows = re.findall(r"^\| `(_\w+)` \|.*\| `([\w/.]+)` \|$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(rows)


@pytest.mark.slow
def test_every_private_name_is_listed():
    assert set(listed()) == used_names() | set(shared_names()) - GENERATED - STANDARD_LIBRARY


def test_test_files_of_the_table_exist():
    assert [test for test in listed().values() if not (ROOT / test).is_file()] == []
