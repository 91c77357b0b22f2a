"""Training on two processes (DDP, FSDP2 of transformers and of Accelerate, tensor parallelism) equals that on one."""

import json
from pathlib import Path

import pytest
import transformers
from packaging import version
from transformers import AutoModelForSeq2SeqLM

from tests.helpers import many_devices_worker
from tests.helpers.many_devices_worker import INTERRUPTED
from tests.helpers.models import assert_near
from tests.helpers.processes import run_on_two_processes
from tests.helpers.training import write_corpus

WORKER = Path(many_devices_worker.__file__)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_corpus(folder)
    return folder


@pytest.fixture(scope="module")
def alone(corpus):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("modeling_random_transformer.training.run.TranslationTrainer", None)  # main() replaces it
        many_devices_worker.main(corpus, "alone")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "fsdp2", "tp"])
def test_two_processes_train_like_one(kind, corpus, alone):  # noqa: ARG001 (the run of one process)
    if kind in ("fsdp", "tp") and version.parse(transformers.__version__) < version.parse("5.23"):
        pytest.skip("the Trainer of transformers older than 5.23 cannot shard weights")
    done = run_on_two_processes(WORKER, str(corpus), kind)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, options in many_devices_worker.runs(corpus, kind).items():
        suffix = name.removeprefix(kind)
        ours, theirs = (json.loads((corpus / f"{folder}.json").read_text()) for folder in (name, f"alone{suffix}"))
        steps = list(range(1, options.get("max_steps", 20) + 1))
        assert theirs["steps"] == steps
        if name in INTERRUPTED:
            saved, interrupted = INTERRUPTED[name]
            steps = steps[:interrupted] + steps[saved:]
        assert ours["steps"] == steps
        assert ours["losses"] == pytest.approx([theirs["losses"][step - 1] for step in ours["steps"]], rel=1e-3)
        assert ours["scores"] == pytest.approx(theirs["scores"], abs=5)  # a few tokens may differ by rounding
        # The saved weights are complete, regardless of the shards of the processes.
        folders = [corpus / f"{name}{suffix}" for name in (kind, "alone")]
        weights, expected = (AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict() for folder in folders)
        for name, weight in expected.items():
            if not name.endswith("k_proj.bias"):  # no output depends on it: its gradient is rounding error
                assert_near(weights[name], weight, 1e-2)  # Adam also normalizes tiny gradients
    assert (corpus / kind / "modeling_random_transformer.py").is_file()
