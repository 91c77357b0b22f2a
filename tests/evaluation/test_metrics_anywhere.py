"""The metrics without the extra, without a home to write to, and in several processes at once."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import modeling_random_transformer.evaluation as evaluation_package
from modeling_random_transformer.evaluation import load_metric, score, translation_metrics
from tests.helpers.texts import PREDICTIONS, REFERENCES

# The children import evaluate themselves, at the same time; the parent never does.
TWO_PROCESSES = """
import json, multiprocessing, sys
import modeling_random_transformer
from modeling_random_transformer.evaluation import score

imported = [name for name in ("datasets", "evaluate", "sacrebleu") if name in sys.modules]
texts = json.load(sys.stdin)
with multiprocessing.get_context("fork").Pool(2) as pool:
    scores = pool.starmap(score, [texts, texts], chunksize=1)
print(json.dumps({"imported": imported, "scores": scores}))
"""


@pytest.mark.slow
def test_two_processes_at_once_without_a_home():
    """Nobody can make a folder below a device; a home that is merely read-only would not stop root."""
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


@pytest.mark.parametrize("missing", ["datasets", "evaluate", "sacrebleu"])
def test_without_the_extra_it_is_named(missing, monkeypatch):
    for module in ("corpus_metric", "bleu.bleu", "chrf.chrf"):  # forget what earlier tests have imported
        monkeypatch.delitem(sys.modules, f"{evaluation_package.__name__}.{module}", raising=False)
    monkeypatch.setitem(sys.modules, missing, None)
    for call in (lambda: load_metric("bleu"), lambda: score(["a"], ["a"]), lambda: translation_metrics(None)):
        with pytest.raises(ImportError, match=r"pip install 'random-transformer\[train\]'") as caught:
            call()
        assert caught.value.name == missing
