"""Imports between the modules of the package point one way; see docs/explanation/architecture.md."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from operator import attrgetter
from pathlib import Path

import pytest

import modeling_random_transformer

PACKAGE = Path(modeling_random_transformer.__file__).parent
# Subpackages and modules, in an order in which each imports only earlier ones.
LAYERS = (
    "__version__",
    "versions_random_transformer",
    "configuration_random_transformer",
    "ops_random_transformer",
    "snapshot_random_transformer",
    "verification_random_transformer",
    "quantization_random_transformer",
    "decoding_random_transformer",
    "generation_random_transformer",
    "modeling_random_transformer",
    "tokenization_random_transformer",
    "inputs_random_transformer",
    "pipeline_random_transformer",
    "base",
    "data",
    "inference",
    "training",
    "stages",
    "extras",
    "commands",
    "cli",
)


# Names that several modules define with one meaning: the interfaces of commands, exporters, formats of checkpoints and
# documents, and names of any module.
SHARED_NAMES = {
    *("Arguments", "run"),
    *("load", "save"),
    *("EMBEDDINGS", "FORMAT", "SIDE_NAMES", "convert_weights", "find_files", "make_tokenizer"),
    *("map_positions", "map_vocabulary", "read_config", "read_stored"),
    *("is_untranslated",),
    *("T", "__all__", "logger", "register_v4_tasks"),
}


def modules() -> Iterator[tuple[str, ...]]:
    """The names of all modules but `__init__.py` and `__main__.py`, as paths without suffix."""
    for path in PACKAGE.rglob("*.py"):
        if not path.name.startswith("__"):
            yield path.relative_to(PACKAGE).with_suffix("").parts


def imports(module: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """The modules and packages that a module imports anywhere, including in functions and for type hints."""
    tree = ast.parse(PACKAGE.joinpath(*module).with_suffix(".py").read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = (*module[: -node.level], *(node.module or "").split("."))
            for name in node.names:
                longer = (*filter(None, base), name.name)
                is_module = PACKAGE.joinpath(*longer).with_suffix(".py").is_file() or (PACKAGE / Path(*longer)).is_dir()
                yield longer if is_module else tuple(filter(None, base))


def test_subpackages_import_only_earlier_layers():
    violations = [
        f"{'.'.join(module)} imports {'.'.join(imported)}"
        for module in modules()
        for imported in imports(module)
        if imported and LAYERS.index(imported[0]) > LAYERS.index(module[0])
    ]
    assert not violations


def test_modules_have_no_import_cycles():
    TopologicalSorter({module: set(imports(module)) for module in modules()}).prepare()


def defined_names(module: tuple[str, ...]) -> Iterator[str]:
    """The constants, functions and classes that a module defines."""
    tree = ast.parse(PACKAGE.joinpath(*module).with_suffix(".py").read_text())
    for statement in tree.body:
        if isinstance(statement, ast.FunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Assign | ast.AnnAssign):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))


def test_a_name_has_one_meaning():
    counts = Counter(name for module in modules() for name in {*defined_names(module)})
    assert not {name for name, count in counts.items() if count > 1} - SHARED_NAMES


def extras_imported_by(folder: Path) -> set[str]:
    """The other folders of `extras` that the modules of one import."""
    names = set()
    for path in folder.rglob("*.py"):
        module = path.relative_to(PACKAGE).with_suffix("").parts
        names |= {imported[1] for imported in imports(module) if imported[0] == "extras" and len(imported) > 1}
    return names - {folder.name}


@pytest.mark.parametrize("folder", sorted(PACKAGE.glob("extras/*/")), ids=attrgetter("name"))
def test_a_readme_names_the_other_extras_that_its_folder_imports(folder):
    if folder.name.startswith("__"):
        return
    readme = (folder / "README.md").read_text()
    assert {name for name in extras_imported_by(folder) if f"extras/{name}" not in readme} == set()


def test_the_core_imports_extras_by_these_names_only():
    calls = set()
    for path in PACKAGE.rglob("*.py"):
        if path.relative_to(PACKAGE).parts[0] not in ("extras", "commands"):
            calls |= set(re.findall(r"load_extra\((.+?)\)", path.read_text())) - {"name: str"}
    names = ["wrappers.composition", "cuda_graphs", "ensemble", "sentencepiece", "corpora", "pipelines"]
    names += ["search_choice", "sharding", "vocabulary_transfer"]
    assert calls == {"ENGINES[engine]", *(f'"{name}"' for name in names)}
