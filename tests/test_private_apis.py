"""docs/compatibility.md lists every private name of other libraries that the package uses."""

import ast
import importlib
import inspect
import pkgutil
import re
from pathlib import Path

import modeling_random_transformer

PACKAGE = Path(modeling_random_transformer.__file__).parent
ROOT = PACKAGE.parent
PAGE = ROOT / "docs" / "compatibility.md"
STANDARD_LIBRARY = {"_actions", "_exit", "_replace"}  # argparse, os, named tuples
GENERATED = {"_abc_impl", "_auto_class", "_backward_cls", "_is_protocol"}  # set by Python, PyTorch and transformers
TUTORIALS = f"{PACKAGE.name}.tutorials"


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def trees():
    return [ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py") if "tutorials" not in path.parts]


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
    """Private attributes that the package does not define, and private imports."""
    nodes = [node for tree in trees() for node in ast.walk(tree)]
    own = set(own_names(nodes))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    imports = {
        alias.name for node in nodes if isinstance(node, ast.ImportFrom) and not node.level for alias in node.names
    }
    return {name for name in attributes - own | imports if is_private(name)} - STANDARD_LIBRARY


def overridden_names():
    """Private methods and attributes of other libraries' classes that classes of the package replace."""
    for module in pkgutil.walk_packages([str(PACKAGE)], f"{PACKAGE.name}."):
        if module.name.startswith(TUTORIALS) or module.name.endswith("__main__"):
            continue
        for _, kind in inspect.getmembers(importlib.import_module(module.name), inspect.isclass):
            if kind.__module__.startswith(PACKAGE.name):
                foreign = [base for base in kind.__mro__ if not base.__module__.startswith(PACKAGE.name)]
                names = {name for base in foreign for name in vars(base)}
                yield from (name for name in vars(kind) if is_private(name) and name in names)


def listed():
    """The names in the page's table, and the test of each."""
    rows = re.findall(r"^\| `(_\w+)` \|.*\| `([\w/.]+)` \|$", PAGE.read_text(), flags=re.MULTILINE)
    return dict(rows)


def test_every_private_name_is_listed():
    assert set(listed()) == used_names() | set(overridden_names()) - GENERATED


def test_every_private_name_has_a_test():
    assert [test for test in listed().values() if not (ROOT / test).is_file()] == []
