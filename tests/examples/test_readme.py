"""The index of the examples is complete and has no broken links."""

import re
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")


def test_every_script_is_listed():
    missing = [path.name for path in EXAMPLES.glob("*.py") if path.name not in README]
    assert not missing


def test_links_exist():
    links = re.findall(r"\]\(([^)]+)\)", README)
    assert links
    assert all((EXAMPLES / link).exists() for link in links)


def test_tutorial_modules_exist():
    names = re.findall(r"`([\w*]+\.(?:py|json|toml|html))`", README)
    missing = [name for name in names if not list((EXAMPLES / "tutorials").glob(name))]
    assert not missing


def test_no_example_imports_another():
    scripts = {path.stem for path in EXAMPLES.glob("*.py")}
    for path in EXAMPLES.rglob("*.py"):
        imported = set(re.findall(r"^(?:from|import) (\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
        assert not imported & scripts, path


def test_tutorials_import_each_other_relatively():
    for path in (EXAMPLES / "tutorials").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"^(from|import) modeling_random_transformer\.tutorials", text, re.MULTILINE), path
