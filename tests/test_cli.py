"""`random-transformer`: the verbs, their modules, and the wheel that installs the command."""

import errno
import importlib.util
import io
import os
import subprocess
import sys
import zipfile
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from modeling_random_transformer import __version__, cli
from modeling_random_transformer.cli import run_command

ROOT = Path(__file__).parents[1]
SIZES = "the sizes, such as --max_tokens_per_batch and --num_beams, must be small enough for the memory"
MISSING = "No package metadata was found for deepspeed"
FULL = "DefaultCPUAllocator: can't allocate memory: you tried to allocate 160000000000 bytes."


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]], ids=["none", "--help", "-h"])
def test_help_lists_every_verb_on_one_line(capsys, arguments):
    assert cli.main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    for verb, description in cli.VERBS.items():
        assert sum(line.split()[:1] == [verb] and line.endswith(description) for line in lines) == 1


def test_version_and_the_default_of_the_arguments(capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["random-transformer", "--version"])
    for arguments in (["--version"], None):
        assert cli.main(arguments) == 0
        assert capsys.readouterr().out == f"random-transformer {__version__}\n"


@pytest.mark.parametrize("verb", ["transalte", "", "--verbose"])
def test_unknown_verb_is_a_one_line_error(capsys, verb):
    assert cli.main([verb]) == 2
    error = f"random-transformer: error: the verb must be one of {', '.join(cli.VERBS)}, got {verb!r}.\n"
    assert capsys.readouterr().err == error


# Prints the status of `python -m modeling_random_transformer VERB --model x` for each verb.
RUN_VERBS = """
import runpy, sys
for verb in sys.argv[1:]:
    sys.argv[1:] = [verb, "--model", "x"]
    try:
        runpy.run_module("modeling_random_transformer", run_name="__main__")
    except SystemExit as end:
        print(end.code)
"""


def test_missing_package_is_a_one_line_error(tmp_path):
    """In a process of its own, where the packages cannot be imported."""
    packages = {"serve": "starlette", "train": "datasets"}
    for package in packages.values():
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").write_text(f"raise ModuleNotFoundError(\"No module named '{package}'\")")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, ROOT))),
        "PYTHONWARNINGS": "ignore::SyntaxWarning",  # of torchao's source, with Python 3.12 and newer
    }
    command = [sys.executable, "-c", RUN_VERBS, *packages]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.stderr.splitlines() == [
        f"random-transformer {verb}: error: a package is missing: pip install 'random-transformer[{verb}]': "
        f"No module named '{package}'."
        for verb, package in packages.items()
    ]
    assert ended.stdout == "2\n2\n"


@pytest.mark.parametrize(
    "error", [NameError("name 'x' is not defined"), ImportError("no y", name="modeling_random_transformer.data")]
)
def test_an_error_in_the_code_of_a_command_is_not_a_missing_package(error, monkeypatch):
    def fail(*_):
        raise error

    monkeypatch.setattr(cli.importlib, "import_module", fail)
    monkeypatch.setattr(cli, "run_command", lambda run, *_: run())
    with pytest.raises(type(error), match=str(error)):
        cli.main(["train"])


@pytest.mark.parametrize("verb", cli.VERBS)
def test_verb_prints_its_help(capsys, verb):
    with pytest.raises(SystemExit) as exit_:
        cli.main([verb, "--help"])
    assert exit_.value.code in (0, None)
    assert capsys.readouterr().out.startswith(f"usage: random-transformer {verb} ")


@pytest.mark.parametrize(
    ("error", "status", "printed"),
    [
        (ValueError("a\nb"), 2, "name: error: a b\n"),
        (FloatingPointError("nan"), 1, "name: error: nan\n"),
        (OSError(errno.ENOSPC, "No space left", "/out"), 2, "name: error: /out: No space left.\n"),
        (OSError(errno.ENOSPC, "No space left", "/in", None, "/out"), 2, "name: error: /out: No space left.\n"),
        (MemoryError("2 TiB"), 2, f"name: error: {SIZES}, got MemoryError: 2 TiB\n"),
        (RuntimeError(FULL), 2, f"name: error: {SIZES}, got RuntimeError: {FULL}\n"),
        (PackageNotFoundError("deepspeed"), 2, f"name: error: a package is missing: {MISSING}\n"),
        (KeyboardInterrupt(), 130, ""),
        (KeyboardInterrupt("resumes"), 130, "name: error: resumes\n"),
    ],
)
def test_errors_are_a_status_and_a_line(error, status, printed, capsys):
    def fail():
        raise error

    assert run_command(fail, "name") == status
    assert capsys.readouterr().err == printed


def test_other_errors_of_the_runtime_are_raised():
    def fail():
        raise RuntimeError("a bug")

    with pytest.raises(RuntimeError, match="a bug"):
        run_command(fail, "name")


@pytest.mark.parametrize(("encoding", "printed"), [("latin-1", b"a \\u2192 \xf1"), ("utf-8", "a → ñ".encode())])
def test_characters_that_the_terminal_does_not_have(encoding, printed, monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), encoding)
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run_command(lambda: print("a → ñ", end=""), "name") == 0
    stdout.flush()
    assert stdout.buffer.getvalue() == printed


def test_a_command_that_prints_nothing_needs_no_open_output(monkeypatch):
    stdout = io.TextIOWrapper(io.BytesIO(), "utf-8")
    stdout.close()
    monkeypatch.setattr(sys, "stdout", stdout)
    assert run_command(lambda: 0, "name") == 0


@pytest.mark.parametrize("status", [None, 0, 1])
def test_the_status_of_a_command(status):
    assert run_command(lambda: status, "name") == (status or 0)


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("hatchling") is None, reason="hatchling is not installed")
def test_wheel_installs_and_runs_outside_of_the_checkout(tmp_path):
    """The wheel is built from the sdist, as package installers do, without network access."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", tmp_path]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    pip, offline = [sys.executable, "-m", "pip"], ["--quiet", "--no-deps", "--no-index"]
    [sdist] = tmp_path.glob("*.tar.gz")
    make = [*pip, "wheel", *offline, "--no-build-isolation", "--wheel-dir", tmp_path, sdist]
    subprocess.run(make, check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        [entry_points] = [name for name in names if name.endswith("entry_points.txt")]
        assert "random-transformer = modeling_random_transformer.cli:main" in archive.read(entry_points).decode()
    package = "modeling_random_transformer"
    data = {"py.typed", "extras/export/page/search_tree.js", "training/model_card.md"}
    data |= {f"extras/inspection/{name}" for name in ("explorer.html", "formulas.toml", "report.html")}
    assert {f"{package}/{name}" for name in (*data, "cli.py")} <= set(names)
    assert not any(name.startswith(("tests/", "examples/")) for name in names)
    target = tmp_path / "target"
    install = [*pip, "install", *offline, "--no-compile", "--target", target, wheel]
    subprocess.run(install, check=True, capture_output=True)
    command = [sys.executable, "-P", "-c", IMPORT_FROM_TARGET, target]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for verb in ("", "translate ", "explore "):
        assert f"usage: random-transformer {verb}" in done.stdout


# The editable installation of the checkout must not be found before the target folder. `--help` without a verb must not
# wait for the imports of the verbs.
IMPORT_FROM_TARGET = """
import runpy, sys
target = sys.argv[1]
sys.path.insert(0, target)
import modeling_random_transformer
assert modeling_random_transformer.__file__.startswith(target), modeling_random_transformer.__file__
for verb in ([], ["translate"], ["explore"]):
    sys.argv[1:] = [*verb, "--help"]
    try:
        runpy.run_module("modeling_random_transformer", run_name="__main__")
    except SystemExit as end:
        assert not end.code, end.code
    verbs = {name for name in sys.modules if name.startswith("modeling_random_transformer.commands.")}
    assert verb or verbs == {"modeling_random_transformer.commands.command_line"}, verbs
"""


def test_an_interruption_of_the_imports_is_one_line(tmp_path):
    """The module sends the signal when it is imported."""
    (tmp_path / "transformers.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    root = Path(__file__).parents[1]
    path = os.pathsep.join((str(tmp_path), str(root)))
    command = [sys.executable, "-m", "modeling_random_transformer", "--version"]
    # torchao's source gives a SyntaxWarning with Python 3.12 and newer.
    environment = os.environ | {"PYTHONPATH": path, "PYTHONWARNINGS": "ignore::SyntaxWarning"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 130
    assert done.stderr == "random-transformer: error: interrupted.\n"


@pytest.mark.parametrize(
    ("command", "similar"),
    [
        ("train --sorce_file a --target_file b --output_dir c", "--sorce_file. Did you mean --source_file?"),
        ("train --source-fil=a", "--source-fil. Did you mean --source_file?"),
        ("distill --teachr a", "--teachr. Did you mean --teacher?"),
        ("translate --modle a text", "--modle. Did you mean --model?"),
        ("clean --ouput a.tsv", "--ouput. Did you mean --output?"),
        ("score --xyz", "--xyz."),
        ("train --lr 0.1", "--lr. Did you mean --learning_rate?"),
        ("train --batch-size 8", "--batch-size. Did you mean --max_tokens_per_batch?"),
        ("train --src a --tgt b", "--src. Did you mean --source_file?"),
        ("train --dictionary words.tsv", "--dictionary. Did you mean --train_file?"),
        ("train --parent outputs/en-de", "--parent. Did you mean --model_name_or_path?"),
        ("train --output a", "--output. Did you mean --output_dir?"),
        ("train --epoch 3", "--epoch."),  # like --project of transformers, which is not in the help
        ("train --hidden_size 8", "--hidden_size."),
        ("translate --beams 3", "--beams. Did you mean --num_beams?"),
        ("train --train a", "--train."),  # like --streaming
        ("translate --source a", "--source."),  # like --source_lang
        ("translate --lr 3", "--lr."),  # like --mbr
        ("translate --src_lang en", "--src_lang. Did you mean --source_lang?"),
        ("translate --nbest 3", "--nbest. Did you mean --n_best?"),
        ("evaluate --hyp a", "--hyp."),  # like --help
        ("serve --optim a", "--optim."),  # like --port
        ("clean --port 80", "--port."),  # like --report
        ("clean --output_dir a", "--output_dir. Did you mean --output?"),
        ("export folder --enginee onnx", "--enginee. Did you mean --engine?"),
        ("convert torch model.pt --num_head 4", "--num_head. Did you mean --num_heads?"),
    ],
)
def test_a_misspelled_flag_is_the_first_error(command, similar, capsys):
    assert cli.main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"error: arguments must be among those of --help, got {similar}")


@pytest.mark.parametrize(
    "command", ["train pairs.tsv b.tsv", "train recipe.yaml pairs.tsv b.tsv", "clean pairs.tsv b.tsv"]
)
def test_a_value_without_a_flag_is_an_error(command, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("recipe.yaml").write_text("seed: 1")
    assert cli.main(command.split()) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("error: arguments must be flags of --help and their values, got pairs.tsv b.tsv.")
