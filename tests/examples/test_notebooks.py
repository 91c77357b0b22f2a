"""The notebooks: pairs of a script and a notebook with stored outputs, the execution of each, and what stores them.

The scripts run in this process, where torch and transformers are imported already: a kernel would take ten seconds more
for each. The kernel that stores the outputs runs a small notebook. What the reader has to write is tested with the
solution, without it, and with wrong code.
"""

import re
import runpy
from pathlib import Path

import matplotlib
import nbformat
import pytest
from matplotlib import pyplot
from notebooks import execute

ROOT = Path(__file__).parents[2]
SCRIPTS = execute.find_scripts()
by_name = pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)


def read(script: Path) -> nbformat.NotebookNode:
    return nbformat.read(script.with_suffix(".ipynb"), as_version=4)


@by_name
def test_notebook_starts_with_a_button(script):
    button, install = read(script).cells[:2]
    path = f"github/{execute.REPOSITORY}/blob/main/{script.relative_to(ROOT).with_suffix('.ipynb')}"
    assert f"](https://colab.research.google.com/{path})" in button.source
    assert install.source == execute.INSTALL


def test_every_script_has_a_notebook():
    assert [path.with_suffix(".ipynb") for path in SCRIPTS] == sorted(execute.FOLDER.glob("*.ipynb"))
    assert len({path.stem[:2] for path in SCRIPTS}) == len(SCRIPTS), "several notebooks have the same number"


@by_name
def test_notebook_has_the_source_of_its_script_and_outputs_without_errors(script):
    assert "# %% [markdown] " not in script.read_text(), "text on the line of a marker is not part of the cell"
    stored, source = read(script), execute.read_script(script)
    nbformat.validate(stored)
    assert stored.metadata == source.metadata
    assert [(cell.cell_type, cell.id, cell.source, cell.metadata) for cell in stored.cells] == [
        (cell.cell_type, cell.id, cell.source, {}) for cell in source.cells
    ]
    assert execute.check_outputs(stored) == []
    code = [cell for cell in stored.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == [*range(1, len(code) + 1)]


def code_cells(script: Path) -> list[nbformat.NotebookNode]:
    """The code of a notebook with the solutions of its gaps, after the cell that installs the package."""
    cells = [cell for cell in execute.solve(execute.read_script(script)).cells if cell.cell_type == "code"]
    assert cells.pop(0).source == execute.INSTALL
    return cells


@pytest.mark.long
@pytest.mark.usefixtures("_reset_accelerate")
def test_scripts_run(tmp_path, monkeypatch):
    """The cells assert their outcomes. Later scripts use the model that an earlier one has trained."""
    monkeypatch.chdir(tmp_path)
    matplotlib.use("Agg")
    for script in SCRIPTS:
        solved = tmp_path / script.name
        solved.write_text("\n\n".join(cell.source for cell in code_cells(script)))
        runpy.run_path(str(solved), run_name="__main__")
        pyplot.close("all")


# What the reader writes

PLAIN = next(script for script in SCRIPTS if script.name.startswith("00_"))
GAPS = [
    (solved.source, cell.source)
    for solved, cell in zip(
        execute.solve(execute.read_script(PLAIN)).cells, execute.read_script(PLAIN).cells, strict=True
    )
    if solved.source != cell.source
]
WRONG = {
    "scaling": (" / math.sqrt(query.shape[-1])", ""),
    "softmax": ("softmax(dim=-1)", "softmax(dim=-2)"),
    "mask": ("scores.masked_fill(~visible, -torch.inf)", "scores"),
    "causal mask": ("visible=causal_mask)", "visible=torch.ones_like(causal_mask))"),
    "residual connection": ("norm(y + self.encoder_attn(", "norm(self.encoder_attn("),
    "keys": ("memory=memory, visible=padding_mask", "memory=y, visible=causal_mask"),
}


def run_until_training(right: str = "", wrong: str = "") -> None:
    """Run the solved notebook up to its training, with `right` replaced by `wrong` in the solutions."""
    namespace: dict[str, object] = {}
    solutions = {solution for solution, _ in GAPS}
    for cell in code_cells(PLAIN):
        if "optimizer" in cell.source:
            break
        exec(cell.source.replace(right, wrong) if cell.source in solutions else cell.source, namespace)


def test_every_box_of_figure_1_is_compared(capsys):
    run_until_training()
    compared = re.findall(r"equal to ([\w.]+),", capsys.readouterr().out)
    attention = [f"encoder.layers.0.self_attn.head.{head}.output" for head in range(4)]
    encoder = ["self_attn.output", "self_attn.layer_norm", "ffn.output", "ffn.layer_norm"]
    assert compared == [
        *("encoder.embedding.scaled", "encoder.embedding.sum", *attention),
        *(f"encoder.layers.0.{box}" for box in encoder),
        *("decoder.layers.0.self_attn.output", "decoder.layers.0.ffn.layer_norm", "logits", "probabilities"),
    ]


@pytest.mark.parametrize(("solution", "gap"), GAPS, ids=["attention", "decoder layer"])
def test_checks_fail_on_a_gap(solution, gap):
    with pytest.raises(NotImplementedError, match="Your turn"):
        run_until_training(solution, gap)


@pytest.mark.parametrize(("right", "wrong"), WRONG.values(), ids=WRONG)
def test_checks_fail_on_wrong_code(right, wrong):
    with pytest.raises(AssertionError, match="not close"):
        run_until_training(right, wrong)


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
    *_, text, plot = nbformat.read(stored, as_version=4).cells
    assert text.outputs == [{"name": "stdout", "output_type": "stream", "text": "one\ntwo\n"}]
    assert "image/png" in plot.outputs[0].data


@pytest.mark.long
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("1 / 0", "ZeroDivisionError"),
        ("import os; os._exit(1)", "execute.py: error: 01_failing.py: Kernel died\n"),
        ("import sys; print('hm', file=sys.stderr)", "cell-02 must not raise an error or write to stderr, got 'hm'"),
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
