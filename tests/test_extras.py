"""The folders of `extras` can be deleted: the core neither imports them nor needs them in its tests."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import modeling_random_transformer

PACKAGE = Path(modeling_random_transformer.__file__).parent
ROOT = PACKAGE.parent
EXTRAS = sorted(path.parent.name for path in PACKAGE.glob("extras/*/__init__.py"))
CORE = ("base", "data", "inference", "training", "stages")
TESTS = [f"tests/{folder}" for folder in CORE]
TESTS += [f"tests/test_{name}.py" for name in ("modeling", "generation", "fast_decoder", "tokenization", "pipeline")]

IMPORT_ALL = """
import importlib, pkgutil, sys
import modeling_random_transformer as package

modules = [module.name for module in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
core = [name for name in modules if name.split(".")[1] not in ("commands", "cli", "__main__")]
for name in core:
    importlib.import_module(name)
print(len(core), package.__file__)
"""


def copy_package(folder: Path) -> Path:
    """A copy of the package in a folder; returns its folder `extras`."""
    copied = shutil.copytree(PACKAGE, folder / PACKAGE.name, ignore=shutil.ignore_patterns("__pycache__"))
    return copied / "extras"


def run(folder: Path, *arguments: str) -> str:
    """The output of Python in a folder whose package is imported."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    completed = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert completed.returncode == 0, (completed.stdout + completed.stderr)[-5000:]
    return completed.stdout


def test_core_is_imported_without_extras(tmp_path):
    shutil.rmtree(copy_package(tmp_path))
    count, path = run(tmp_path, "-c", IMPORT_ALL).split()
    assert int(count) > 50
    assert path.startswith(str(tmp_path))


@pytest.mark.long
def test_tests_of_the_core_pass_without_extras(tmp_path):
    """All folders are deleted at once: a test that needs none of them needs no single one."""
    extras = copy_package(tmp_path)
    for extra in EXTRAS:
        shutil.rmtree(extras / extra)
    for name in ("tests", "examples", "benchmarks", "docs"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.rmtree(tmp_path / "tests" / "extras")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    output = run(tmp_path, "-m", "pytest", "-q", "-n", "2", "-m", "not slow and not long", *TESTS)
    assert " passed" in output
