"""The metrics without their dependencies, without a writable home folder, and in several processes at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from modeling_random_transformer.inference.evaluation import load_metric, score, translation_metrics
from tests.helpers.texts import PREDICTIONS, REFERENCES

# The child processes import sacrebleu at the same time; the parent does not import it.
TWO_PROCESSES = """
import json, multiprocessing, sys
import modeling_random_transformer
from modeling_random_transformer.inference.evaluation import score

imported = [name for name in ("datasets", "evaluate", "sacrebleu") if name in sys.modules]
texts = json.load(sys.stdin)
with multiprocessing.get_context("fork").Pool(2) as pool:
    scores = pool.starmap(score, [texts, texts], chunksize=1)
print(json.dumps({"imported": imported, "scores": scores}))
"""


@pytest.mark.slow
def test_concurrent_processes_without_a_writable_home():
    """A device cannot hold a folder for any user, while root can write to a read-only folder."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "XDG_"))}
    done = subprocess.run(
        [sys.executable, "-c", TWO_PROCESSES],
        env=inherited | {"HOME": os.devnull, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(Path(__file__).parents[2])},
        input=json.dumps([PREDICTIONS, REFERENCES]),
        capture_output=True,
        text=True,
        check=False,
        timeout=1200,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["imported"] == [], "importing the package must not import the extra"
    assert result["scores"] == [score(PREDICTIONS, REFERENCES)] * 2


FUNCTIONS = {
    "load_metric": lambda: load_metric("bleu"),
    "score": lambda: score(["a"], ["a"]),
    "translation_metrics": lambda: translation_metrics(None),
}


@pytest.mark.parametrize(
    ("function", "missing"),
    [("score", "sacrebleu"), ("translation_metrics", "sacrebleu"), ("load_metric", "evaluate")],
)
def test_missing_dependency_raises_import_error_that_names_the_extra(function, missing, monkeypatch):
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"pip install 'random-transformer\[train\]'") as caught:
        FUNCTIONS[function]()
    assert caught.value.name == missing
