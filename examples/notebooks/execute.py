"""Execute the notebooks and store their outputs.

    python examples/notebooks/execute.py          # all notebooks, as does `make notebooks`
    python examples/notebooks/execute.py 01 03    # those with these numbers

The source of a notebook is a script in jupytext's percent format, `NN_name.py`. Executing it in a new kernel writes
`NN_name.ipynb` beside it. A stored notebook has no timings, paths or random ids, so that it changes only if its
outputs change.

Two cells are added at the top of each notebook: a button that opens it on a hosted service, and a cell that installs
the package there. Where the reader has to write code, the outputs are those of the solution.

Exit status: 0 on success; 1 if a cell raises an error, the kernel ends, or the outputs cannot be stored; 2 if an
argument is invalid.
"""

import argparse
import os
import re
import sys
from base64 import b64decode, b64encode
from collections.abc import Sequence
from io import BytesIO
from itertools import pairwise
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from nbformat import NotebookNode
from PIL import Image

from modeling_random_transformer.base.files import write_atomically

SCRIPT = "execute.py"
FOLDER = Path(__file__).parent
METADATA = {
    "jupytext": {"formats": "ipynb,py:percent"},
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}
MAX_BYTES = 300_000
# The GitHub repository in which the hosted service finds the notebooks.
REPOSITORY = "random-transformer/random-transformer"
BUTTON = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]({})"
HOSTED = f"https://colab.research.google.com/github/{REPOSITORY}/blob/main/examples/notebooks/{{}}"
INSTALL = f"""\
# On a hosted service: install the package, which takes a minute or two. On other machines, this cell does nothing.
import importlib.util

if importlib.util.find_spec("modeling_random_transformer") is None:
    !git clone --quiet --depth 1 https://github.com/{REPOSITORY} random-transformer
    %pip install --quiet "./random-transformer[notebooks]"
    %cd random-transformer/examples/notebooks"""
GAP = "raise NotImplementedError("  # marks a cell that the reader completes; the next cell contains the solution
SOLUTION = re.compile(r"<summary>Solution</summary>\n\n```python\n(.+?)\n```", re.DOTALL)
CELL_TIMEOUT = 3600  # seconds; each takes less than two minutes unless the machine is busy
# Absolute paths and addresses of objects differ between machines and runs.
LOCAL = re.compile(r"(?<![\w./:<])/\w+/[\w./-]+|\b0x[0-9a-f]{6,}")


def main(argv: Sequence[str] | None = None) -> int:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(SCRIPT, argparse.SUPPRESS, __doc__, formatter_class=raw)
    scripts = {path.name[:2]: path for path in find_scripts()}
    parser.add_argument("numbers", nargs="*", metavar="NN", help="numbers of notebooks; default: all")
    numbers = parser.parse_args(argv).numbers
    for number in numbers:
        if number not in scripts:
            parser.error(f"a number must be one of {', '.join(scripts)}, got {number!r}.")
    for number in numbers or scripts:
        try:
            stored = store(scripts[number])
        except (CellExecutionError, RuntimeError, ValueError) as error:
            print(f"{SCRIPT}: error: {scripts[number].name}: {error}", file=sys.stderr)
            return 1
        print(f"Wrote {stored.name} ({stored.stat().st_size / 1000:.0f} kB).")
    return 0


def find_scripts(folder: Path = FOLDER) -> list[Path]:
    """The scripts `NN_name.py` of a folder, by number."""
    return sorted(folder.glob("[0-9][0-9]_*.py"))


def store(script: Path) -> Path:
    """Execute a script as a notebook in its folder, with the solutions of its gaps, and write the notebook beside it.

    Returns:
        The path of the notebook.

    Raises:
        CellExecutionError: a cell raised an exception.
        RuntimeError: the kernel did not start, or ended.
        ValueError: see `check_outputs`.
    """
    notebook, executed = read_script(script), solve(read_script(script))
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm without ipywidgets
    client = NotebookClient(
        executed,
        timeout=CELL_TIMEOUT,
        kernel_name="python3",
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(script.parent)}},
    )
    client.execute()
    for cell, result in zip(notebook.cells, executed.cells, strict=True):
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = (
                [reduce_colors(output) for output in result.outputs],
                result.execution_count,
            )
    for problem in check_outputs(notebook):
        raise ValueError(problem)
    path = script.with_suffix(".ipynb")
    write_atomically(path, [f"{nbformat.writes(notebook)}\n".encode()])
    return path


def read_script(script: Path) -> NotebookNode:
    """A script as a notebook without outputs, after the button and the installing cell. Cell ids count the cells."""
    notebook = jupytext.read(script, fmt="py:percent")
    button = BUTTON.format(HOSTED.format(script.with_suffix(".ipynb").name))
    # JupyterLab with jupytext may have saved these cells in the script too.
    cells = [cell for cell in notebook.cells if cell.source not in (button, INSTALL)]
    notebook.cells = [nbformat.v4.new_markdown_cell(button), nbformat.v4.new_code_cell(INSTALL), *cells]
    notebook.metadata = nbformat.from_dict(METADATA)
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index:02}"
        cell.metadata = nbformat.NotebookNode()  # jupytext's number of blank lines
    return notebook


def solve(notebook: NotebookNode) -> NotebookNode:
    """Replace each cell that the reader completes by the solution in the next cell, in place.

    Raises:
        ValueError: the next cell contains no solution.
    """
    for cell, following in pairwise(notebook.cells):
        if cell.cell_type == "code" and GAP in cell.source:
            solution = SOLUTION.search(following.source)
            if solution is None:
                raise ValueError(f"{following.id} must contain the solution of {cell.id}, got none.")
            cell.source = solution[1]
    return notebook


def reduce_colors(output: NotebookNode) -> NotebookNode:
    """Store a plot with 256 colors, in place: half of the bytes without a visible difference."""
    if plot := output.get("data", {}).get("image/png"):
        stored = BytesIO()
        Image.open(BytesIO(b64decode(plot))).convert("RGB").quantize(256).save(stored, "PNG", optimize=True)
        output.data["image/png"] = b64encode(stored.getvalue()).decode()
    return output


def check_outputs(notebook: NotebookNode) -> list[str]:
    """What is wrong with the outputs of an executed notebook: missing, errors, warnings, paths, or their size."""
    problems = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        if cell.execution_count is None:
            problems.append(f"{cell.id} must be executed.")
        for output in cell.outputs:
            text = output.get("text") or output.get("data", {}).get("text/plain", "")
            if output.output_type == "error" or output.get("name") == "stderr":
                problems.append(f"{cell.id} must not raise an error or write to stderr, got {text.strip()[:200]!r}.")
            if match := LOCAL.search(text):
                problems.append(f"{cell.id} must not show paths or addresses, got {match[0]!r}.")
    if (size := len(nbformat.writes(notebook).encode())) > MAX_BYTES:
        problems.append(f"the notebook must have at most {MAX_BYTES} bytes, got {size}.")
    return problems


if __name__ == "__main__":
    sys.exit(main())
