"""The notebooks: pairs of a script and a notebook with stored outputs, the execution of each, and what stores them.

The scripts run in this process, where torch and transformers are imported already: a kernel would take ten seconds more
for each. The kernel that stores the outputs runs a small notebook.
"""

import runpy
from pathlib import Path

import matplotlib
import nbformat
import pytest
from matplotlib import pyplot
from notebooks import execute

SCRIPTS = execute.find_scripts()
by_name = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


def read(script: Path) -> nbformat.NotebookNode:
    return nbformat.read(script.with_suffix(".ipynb"), as_version=4)


def test_every_script_has_a_notebook():
    assert [path.with_suffix(".ipynb") for path in SCRIPTS] == sorted(execute.FOLDER.glob("*.ipynb"))
    assert len({path.stem[:2] for path in SCRIPTS}) == len(SCRIPTS), "several notebooks have the same number"


@by_name
def test_notebook_has_the_source_of_its_script_and_outputs_without_errors(script):
    stored, source = read(script), execute.read_script(script)
    nbformat.validate(stored)
    assert stored.metadata == source.metadata
    assert [(cell.cell_type, cell.id, cell.source, cell.metadata) for cell in stored.cells] == [
        (cell.cell_type, cell.id, cell.source, {}) for cell in source.cells
    ]
    assert execute.check_outputs(stored) == []
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]


@pytest.mark.long
@pytest.mark.usefixtures("_reset_accelerate")
def test_scripts_run(tmp_path, monkeypatch):
    """The cells assert their outcomes. Later scripts use the model that an earlier one has trained."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    for script in SCRIPTS:
        runpy.run_path(str(script), run_name="__main__")
        pyplot.close("all")


# Storing the outputs

SMALL = """# %% [markdown]
# # Squares
#
# $x^2$

# %%
import matplotlib.pyplot as plt

print("one")
print("two")

# %%
figure, axes = plt.subplots(figsize=(2, 1))
_ = axes.plot([1, 4, 9])
"""


@pytest.mark.long
def test_stored_notebook_depends_on_the_script_only(tmp_path):
    script = tmp_path / "01_squares.py"
    script.write_text(SMALL)
    stored = execute.store(script)
    first = stored.read_bytes()
    assert execute.store(script) == stored == tmp_path / "01_squares.ipynb"
    assert stored.read_bytes() == first
    _, text, plot = nbformat.read(stored, as_version=4).cells
    assert text.outputs == [{"name": "stdout", "output_type": "stream", "text": "one\ntwo\n"}]
    assert "image/png" in plot.outputs[0].data


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import sys; print('hm', file=sys.stderr)", "cell-00 must not raise an error or write to stderr, got 'hm'"),
    ],
)
def test_failing_notebook_is_not_stored(code, message, tmp_path, monkeypatch, capsys):
    (tmp_path / "01_failing.py").write_text(f"# %%\n{code}\n")
    monkeypatch.setattr(execute, "find_scripts", lambda: [tmp_path / "01_failing.py"])
    assert execute.main([]) == 1
    assert message in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["01_failing.py"]


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ([{"output_type": "stream", "name": "stdout", "text": "saved in /srv/models/a"}], "got '/srv/models/a'"),
        ([{"output_type": "stream", "name": "stdout", "text": "<object at 0x7f31c2a0>"}], "got '0x7f31c2a0'"),
        ([{"output_type": "stream", "name": "stdout", "text": "x" * 300_000}], "at most 300000 bytes"),
    ],
    ids=["path", "address", "size"],
)
def test_unsuitable_outputs(outputs, message):
    cell = nbformat.v4.new_code_cell("x", execution_count=1, outputs=[nbformat.from_dict(o) for o in outputs])
    (problem,) = execute.check_outputs(nbformat.v4.new_notebook(cells=[cell]))
    assert message in problem
