"""Training on two processes (DDP, FSDP2 of transformers and of Accelerate, tensor parallelism) equals that on one."""

import json
import shutil
from pathlib import Path

import pytest
import transformers
from packaging import version
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM

from modeling_random_transformer.training.checkpoints import STATE, all_checkpoints
from modeling_random_transformer.training.run_record import TRAINING_RECORD
from tests.helpers import many_devices_worker
from tests.helpers.many_devices_worker import INTERRUPTED, KINDS, OPTIONS, PLAIN
from tests.helpers.models import assert_near
from tests.helpers.processes import run_on_two_processes
from tests.helpers.training import assert_equal_weights, run, write_corpus

SHARDED = [pytest.param(kind, marks=pytest.mark.long) for kind in ("fsdp", "fsdp2", "tp")]
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


def copy_first_half(corpus, name, copy):
    """A run as it was when its checkpoint in the middle was complete."""
    (corpus / copy).mkdir()
    shutil.copytree(corpus / name / "checkpoint-10", corpus / copy / "checkpoint-10")
    for file in (TRAINING_RECORD, "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(corpus / name / file, corpus / copy)


def read_json(corpus, name):
    return json.loads((corpus / f"{name}.json").read_text())


def losses(corpus, name):
    """The loss of each step."""
    state = json.loads((all_checkpoints(corpus / name)[-1] / STATE).read_text())
    return {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ddp", *SHARDED])
def test_two_processes_train_like_one(kind, corpus, alone):  # noqa: ARG001 (the run of one process)
    if kind in ("fsdp", "tp") and version.parse(transformers.__version__) < version.parse("5.23"):
        pytest.skip("the Trainer of transformers older than 5.23 cannot shard weights")
    if kind == "ddp":
        copy_first_half(corpus, "alone", "ddp_resumed")
    done = run_on_two_processes(WORKER, str(corpus), kind)
    assert done.returncode == 0, done.stderr[-3000:]
    for name, options in many_devices_worker.runs(corpus, kind).items():
        suffix = name.removeprefix(kind).replace("_resumed", "")
        ours, theirs = (read_json(corpus, folder) for folder in (name, f"alone{suffix}"))
        steps = options.get("max_steps", 20)
        assert [*losses(corpus, name)] == [*range(1, steps + 1)]
        assert losses(corpus, name) == pytest.approx(losses(corpus, f"alone{suffix}"), rel=1e-3)
        saved, interrupted = INTERRUPTED.get(name, (10, 0) if name == "ddp_resumed" else (0, 0))
        batches = KINDS[kind].get("gradient_accumulation_steps", 1)
        assert len(ours["random_states"][0]) == batches * (interrupted + steps - saved)  # resumed, not begun again
        assert ours["scores"] == pytest.approx(theirs["scores"], abs=5)  # a few tokens may differ by rounding
        # The saved weights are complete, regardless of the shards of the processes.
        folders = [corpus / f"{name}{suffix}" for name in (kind, "alone")]
        weights, expected = (AutoModelForSeq2SeqLM.from_pretrained(folder).state_dict() for folder in folders)
        for name, weight in expected.items():
            if not name.endswith("k_proj.bias"):  # no output depends on it: its gradient is rounding error
                assert_near(weights[name], weight, 1e-2)  # Adam also normalizes tiny gradients
    assert (corpus / kind / "modeling_random_transformer.py").is_file()
    # A shared weight is stored once, and no other model remains in the folder.
    assert {*load_file(corpus / kind / "model.safetensors")} == {*load_file(corpus / "alone" / "model.safetensors")}
    models = {path.parent.relative_to(corpus / kind).parts[:1] for path in (corpus / kind).rglob("config.json")}
    assert models == {(), ("checkpoint-10",), ("checkpoint-20",)}
    check_dropout(corpus, kind)
    if kind in ("ddp", "fsdp2"):  # every pair is evaluated once
        for ours, theirs in zip(*(read_json(corpus, f"{name}_predictions") for name in (kind, "alone")), strict=True):
            for name in ("loss", "loss_without_generation"):
                assert ours[name] == pytest.approx(theirs[name], rel=1e-5)
            assert ours["rows"] == theirs["rows"]
    if kind == "ddp":
        check_resumption_on_one_process(corpus)


def check_dropout(corpus, kind):
    """Data-parallel processes have different random numbers, tensor-parallel ones the same; also when resumed."""
    for name in many_devices_worker.runs_with_dropout(kind):
        first, second = read_json(corpus, name)["random_states"]
        assert (first == second) if kind == "tp" else not {*first} & {*second}
    if kind == "ddp":
        assert_equal_weights(corpus / "ddp_dropout_resumed", corpus / "ddp_dropout")


def check_resumption_on_one_process(corpus):
    copy_first_half(corpus, "ddp", "alone_resumed")
    run(corpus, "alone_resumed", **KINDS["alone"], **OPTIONS | PLAIN)
    assert losses(corpus, "alone_resumed") == pytest.approx(losses(corpus, "alone"), rel=1e-3)
