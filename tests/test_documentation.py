"""The documentation: its Python blocks run, its commands, flags, paths and links exist, its pages are complete.

A block that cannot run in a test is preceded by `<!-- test: skip (reason) -->`. A page that starts with
`<!-- test: subprocess (reason) -->` runs in a separate process.
"""

import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

import modeling_random_transformer
from modeling_random_transformer import RandomTransformerConfig, cli
from modeling_random_transformer.cli import VERBS
from modeling_random_transformer.inference import load_translator
from modeling_random_transformer.inference.calibration import calibrate
from tests.helpers.fairseq import checkpoint
from tests.helpers.marian import opus_folder
from tests.helpers.marian_npz import save_npz
from tests.helpers.models import save_translator
from tests.helpers.other_tools import (
    opennmt_checkpoint,
    random_weights,
    write_eole,
    write_joeynmt,
    write_opennmt,
)

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", "model_card.md", "examples/README.md"))]
PACKAGE = ROOT / "modeling_random_transformer"
EXTRAS = sorted(path.parent.name for path in PACKAGE.glob("extras/*/__init__.py"))
SUBPACKAGES = ("data", "training", "inference", "stages", *(f"extras.{extra}" for extra in EXTRAS))
SCRIPTS = {path.stem for path in (ROOT / "examples").glob("*.py")}
OTHER_PROGRAMS = {"cd", "curl", "git", "hf", "pre-commit", "printf", "python3", "sacrebleu", "source"}
OTHER_FLAGS = {  # of other programs
    *("--config_file", "--cpu", "--directory", "--multi_gpu", "--num_processes"),
    *("--nproc_per_node", "--nnodes", "--max_restarts", "--rdzv_backend", "--rdzv_id", "--rdzv_endpoint"),
    *("--paired", "--format"),
    "--activation_checkpointing",  # of newer releases of transformers
}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SKIP = re.compile(r"<!-- test: skip \((.+)\) -->\n\Z")


@dataclass
class Block:
    """A fenced block of a page. `line` is that of its first line of code, `skip` the reason not to run it."""

    language: str
    code: str
    line: int
    skip: str | None


def blocks(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    page_blocks = []
    for match in FENCE.finditer(text):
        skip = SKIP.search(text[: match.start()])
        page_blocks.append(Block(match[1], match[2], text[: match.start(2)].count("\n") + 1, skip and skip[1]))
    return page_blocks


def name(value: Any) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


def in_subprocess(page: Path) -> bool:
    return page.read_text(encoding="utf-8").startswith("<!-- test: subprocess (")


def python_pages() -> list[Any]:
    pages = [page for page in TEXTS if any(block.language == "python" for block in blocks(page))]
    return [pytest.param(page, marks=[pytest.mark.long] if in_subprocess(page) else []) for page in pages]


@pytest.fixture(scope="module")
def prepared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files and models that the pages name, as tiny as possible."""
    folder = tmp_path_factory.mktemp("documentation")
    pairs = [("the cat sees the dog", "die Katze sieht den Hund"), ("a dog sees a red car", "ein Hund sieht ein Auto")]
    for split in ("train", "test"):
        (folder / f"{split}.tsv").write_text("".join(f"{source}\t{target}\n" for source, target in pairs * 9))
        for language, side in (("en", 0), ("de", 1)):
            (folder / f"{split}.{language}").write_text("".join(f"{pair[side]}\n" for pair in pairs))
    for model in ("en-de", "en-de-seed-2", "de-en", "quickstart", "dates"):
        save_translator(folder / "outputs" / model)
    translator = load_translator(folder / "outputs" / "en-de")
    translations = [pairs[0][1]] * 100  # right for every other pair
    calibrate(*translator, pairs * 50, translations=translations).save(folder / "outputs" / "en-de")
    adapted = get_peft_model(AutoModelForSeq2SeqLM.from_pretrained(folder / "outputs" / "en-de"), LoraConfig(r=2))
    adapted.save_pretrained(str(folder / "outputs" / "animals"))
    AutoTokenizer.from_pretrained(folder / "outputs" / "en-de").save_pretrained(folder / "outputs" / "animals")
    opus_folder(folder / "opus-mt-en-de")
    save_npz(folder / "model.npz")
    torch.save(checkpoint(), folder / "checkpoint_best.pt")
    weights = random_weights(encoder_normalize_before=True)
    for write, model in ((write_joeynmt, "iwslt14_deen"), (write_eole, "wmt17_ende")):
        (folder / "models" / model).mkdir(parents=True)
        write(folder / "models" / model, weights)
    (folder / "models" / "opennmt").mkdir()
    path = write_opennmt(folder / "models" / "opennmt", opennmt_checkpoint(weights))
    path.rename(path.with_name("model_step_100000.pt"))
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("page", python_pages(), ids=name)
def test_python_blocks_run(page: Path, prepared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = [block for block in blocks(page) if block.language == "python" and not block.skip]
    shutil.copytree(prepared_folder, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    if in_subprocess(page):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        script = "\n".join(block.code for block in code)
        done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return
    namespace: dict[str, Any] = {"__name__": "documentation"}
    for block in code:
        exec(compile("\n" * (block.line - 1) + block.code, page, "exec"), namespace)


def test_skipped_blocks_are_few() -> None:
    skipped = [(name(page), block.skip) for page in PAGES for block in blocks(page) if block.skip]
    assert len(skipped) <= 6, skipped


@cache
def help_of(module: str, *first: str) -> str:
    """What a verb, or `main` of a module, prints for `--help` after these arguments."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as shown, suppress(SystemExit):
        patch.setattr(sys, "argv", [module, *first, "--help"])
        cli.main([module, *first, "--help"]) if module in VERBS else importlib.import_module(module).main()
    return shown.getvalue()


def flags_of(module: str, *first: str) -> set[str]:
    """The flags of a verb, or of `main` of a module."""
    return set(re.findall(r"(?<![\w-])--\w+", help_of(module, *first)))


def commands(page: Path) -> Iterator[tuple[int, list[str]]]:
    """The commands of a page's shell blocks, without comments and redirections."""
    for block in blocks(page):
        if block.language == "sh":
            code = block.code.replace("\\\n", " ")
            for line in code.splitlines():
                for command in line.split("&&"):
                    words = shlex.split(command, comments=True)
                    for i in [i for i, word in enumerate(words) if word in ("<", ">")][::-1]:
                        del words[i : i + 2]
                    if words:
                        yield block.line, words


@pytest.mark.parametrize(
    "words",
    [pytest.param(words, id=f"{name(page)}:{line} {words[0]}") for page in TEXTS for line, words in commands(page)],
)
def test_shell_commands_exist(words: list[str]) -> None:
    program, *arguments = words
    if program in OTHER_PROGRAMS:
        return
    if program == "make":
        assert set(arguments) <= set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
        return
    if program == "pip":
        extras = {
            extra for word in arguments for bracketed in re.findall(r"\[(.+)\]", word) for extra in bracketed.split(",")
        }
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        assert extras <= set(project["optional-dependencies"])
        return
    for path in (word.partition("::")[0] for word in arguments):
        assert (ROOT / path).exists() or not path.startswith(("examples/", "tests/", "benchmarks/", "docs/"))
    module, arguments = module_and_arguments(program, arguments)
    if module == "pytest":
        return
    first = () if arguments[:1] and arguments[0].startswith("-") else arguments[:1]  # may select a subcommand
    known = flags_of(module, *first)
    for flag, value in pairwise([*arguments, ""]):
        if flag.startswith("--"):
            assert flag in known
            choices = re.search(rf"{flag}\s+{{(.*?)}}", help_of(module, *first))
            assert not choices or value in choices[1].split(",")


def module_and_arguments(program: str, arguments: list[str]) -> tuple[str, list[str]]:
    """The verb, or the module whose `main` a command calls, and its arguments."""
    if program == "random-transformer":
        return arguments[0], arguments[1:]
    assert Path(program).name in ("python", "accelerate", "torchrun"), program
    for i, word in enumerate(arguments):
        if word == "-m" and arguments[i + 1] == "modeling_random_transformer":
            return arguments[i + 2], arguments[i + 3 :]
        if word == "-m":
            return arguments[i + 1].replace("benchmarks", "benchmarks.__main__"), arguments[i + 2 :]
        if word.endswith(".py"):
            return Path(word).stem, arguments[i + 1 :]
    raise AssertionError(f"no module or script in {program} {arguments}")


def test_no_documented_command_overwrites_references() -> None:
    """Pages follow each other: what one reads as references must not be an output of a command on another one."""
    modules = [ROOT / "modeling_random_transformer", ROOT / "examples"]
    pages = [*TEXTS, *(path for folder in modules for path in folder.rglob("*.py"))]
    text = "\n".join(page.read_text(encoding="utf-8") for page in pages)
    references = set(re.findall(r"(?:\w+_)?file[ =]\"?([\w./-]*(?:test|valid)[\w./-]*)", text))
    outputs = set(re.findall(r"(?:--output(?:_source|_target)?[ =]|\d?> ?)([\w./-]+)", text))
    outputs |= set(re.findall(r'translate_file\("[^"]+", "([^"]+)"', text))
    assert {"test.de", "test.tsv"} <= references
    assert "translated.de" in outputs
    assert not {Path(path).name for path in references} & {Path(path).name for path in outputs}


def test_flags_in_the_text_exist() -> None:
    commands = [("benchmarks.__main__", benchmark) for benchmark in ("generate", "memory", "gpu")]
    formats = ("marian", "marian-npz", "torch", "fairseq", "joeynmt", "opennmt", "eole")
    commands += [("convert", format_) for format_ in formats]
    commands += [(module,) for module in {*VERBS, *SCRIPTS} - {"convert", "micro_transformer"}]  # the last has none
    known = OTHER_FLAGS.union(*(flags_of(*command) for command in commands))
    for page in PAGES:
        for code in re.findall(r"`([^`\n]+)`", FENCE.sub("", page.read_text(encoding="utf-8"))):
            for flag in re.findall(r"(?<![\w-])--[a-z]\w*", code):
                assert flag in known, f"{name(page)}: {flag}"


@pytest.mark.parametrize("page", TEXTS, ids=name)
def test_links_and_images_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), target
        assert linked.is_relative_to(ROOT / "docs") or not page.is_relative_to(ROOT / "docs"), target
        assert not anchor or anchor in anchors(linked), target


def anchors(page: Path) -> set[str]:
    """The ids that the headings of a page get."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {slug(heading) for heading in headings}


def slug(heading: str) -> str:
    return re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=name)
def test_paths_in_the_text_exist(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for path in re.findall(r"`((?:examples|tests|benchmarks|docs|modeling_random_transformer)/[\w/.-]*)`", text):
        assert (ROOT / path).exists(), path


# `Name` and `other` in `path.py`
CODE = [
    file for folder in ("modeling_random_transformer", "tests", "examples") for file in (ROOT / folder).rglob("*.py")
]
NAMES_IN_A_FILE = re.compile(r"((?:`[\w.]+`(?:,| and)? ?)+)(?:of|in) `([\w/]+\.py)`")


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", *PACKAGE.rglob("*.md")], ids=name)
def test_names_in_the_text_are_in_their_files(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8")).replace("\n", " ")
    for names, path in NAMES_IN_A_FILE.findall(text):
        sources = [file.read_text(encoding="utf-8") for file in CODE if file.as_posix().endswith(f"/{path}")]
        assert sources, path
        for word in re.findall(r"`(?:\w+\.)*(\w+)`", names):
            pattern = re.compile(rf"^\s*(?:class |def )?{word}\b", re.MULTILINE)
            assert any(pattern.search(source) for source in sources), f"{word} in {path}"


def test_index_of_the_examples_is_complete() -> None:
    text = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    assert not {name for name in SCRIPTS if f"{name}.py" not in text}
    names = re.findall(r"`([\w*]+\.(?:py|json|toml|html))`", text)
    assert not [name for name in names if not (ROOT / "examples" / "tutorials" / name).exists()]


def test_no_example_imports_another() -> None:
    for path in (ROOT / "examples").rglob("*.py"):
        imported = set(re.findall(r"^(?:from|import) (\w+)", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
        assert not imported & SCRIPTS, path


def test_path_for_beginners_is_complete() -> None:
    text = (ROOT / "docs" / "learn.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| \d+\. (.+?) \| (.+?) \| (.+?) \| (.+?) \|$", text, re.MULTILINE)
    assert rows
    assert all(len(cell) > 2 for row in rows for cell in row)
    notebooks = {path.name for path in (ROOT / "examples" / "notebooks").glob("*.ipynb")}
    assert set(re.findall(r"\w+\.ipynb", text)) == notebooks
    first_screen = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n## ")[0]
    assert "(docs/learn.md)" in first_screen


def test_glossary_is_sorted() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    beginners, further_terms = (re.findall(r"^\| (.+?) \|", part, re.MULTILINE) for part in text.split("\n## ")[1:])
    assert beginners[2:] == sorted(beginners[2:], key=str.lower)
    assert {"query", "key", "value", "softmax", "gradient", "teacher forcing"} <= set(beginners)
    assert "`BeamKVCache`" in further_terms


def test_readme_is_short() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) <= 100
    assert max(map(len, lines)) <= 120


def test_api_reference_is_complete() -> None:
    text = "".join(page.read_text() for page in (ROOT / "docs" / "reference" / "api").glob("*.md"))
    documented = set(re.findall(r"^::: ([\w.]+)$", text, re.MULTILINE))
    package = modeling_random_transformer.__name__
    public = {f"{package}.{name}" for name in modeling_random_transformer.__all__}
    assert public | {f"{package}.{subpackage}" for subpackage in SUBPACKAGES} <= documented


@pytest.mark.parametrize("module", ["", *SUBPACKAGES])
def test_public_names_have_docstrings(module: str) -> None:
    imported = importlib.import_module(f"modeling_random_transformer.{module}".rstrip("."))
    assert imported.__doc__
    missing = []
    for public in imported.__all__:
        value = getattr(imported, public)
        if inspect.isclass(value) or inspect.isroutine(value):
            missing += [public] if not inspect.getdoc(value) else []
        if inspect.isclass(value):
            members = [member for member in vars(value) if not member.startswith("_")]
            routines = [member for member in members if inspect.isroutine(getattr(value, member))]
            missing += [f"{public}.{member}" for member in routines if not inspect.getdoc(getattr(value, member))]
    assert not missing


def test_configuration_table_matches_the_defaults() -> None:
    text = (ROOT / "docs" / "reference" / "configuration.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \| ([^|:]+)", text, re.MULTILINE)
    documented = {field: default.strip().strip("`").strip('"') for field, default in rows}
    fields = [field for field in vars(RandomTransformerConfig)["__annotations__"] if not field.startswith("is_")]
    assert documented == {field: str(getattr(RandomTransformerConfig, field)) for field in fields}


def test_version_is_the_same_everywhere() -> None:
    version = modeling_random_transformer.__version__
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))["version"] == version
    assert f"\n## {version} - " in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_documented_installations_of_torch_select_a_supported_version() -> None:
    """Otherwise, the installation of the package replaces torch, with a build that includes the CUDA packages."""
    dependencies = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    (supported,) = [requirement for requirement in dependencies if requirement.startswith("torch")]
    limit = supported.rpartition(",")[2]
    commands = [
        line
        for page in PAGES
        for line in page.read_text(encoding="utf-8").splitlines()
        if re.match(r"(RUN )?pip install .*\btorch\b", line)
    ]
    assert len(commands) > 5
    for command in commands:
        assert f'"torch{limit}"' in command or "--constraint" in command, command
