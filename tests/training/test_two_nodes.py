"""Two nodes on one machine: two `torchrun` agents with their own rendezvous, one of which is killed and restarted."""

import json
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from tests.helpers import many_devices_worker, two_nodes_worker
from tests.helpers.models import assert_near
from tests.helpers.processes import free_port, start_imported
from tests.helpers.training import run, write_corpus
from tests.helpers.two_nodes_worker import SAVE_STEPS

TIMEOUT = 600  # seconds
MAX_ATTEMPTS = 8  # starts of both nodes; a node that waits for the killed one is started again too
TIMEOUTS = "keep_alive_interval=1,read_timeout=10"  # of the rendezvous, in seconds


def start_node(number, port, folder):
    """An agent of `torchrun`; the first one serves the rendezvous."""
    rendezvous = ("--rdzv_backend", "c10d", "--rdzv_id", "test", "--rdzv_endpoint", f"127.0.0.1:{port}")
    settings = ("--rdzv_conf", f"is_host={int(number == 0)},{TIMEOUTS}", "--local_addr", "127.0.0.1")
    nodes = ("--nnodes", 2, "--nproc_per_node", 1, "--max_restarts", 2)
    worker = (two_nodes_worker.__file__, folder)
    return start_imported(
        "torch.distributed.run",
        *rendezvous,
        *settings,
        *nodes,
        *worker,
        environment={"PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"},
        stderr=folder / f"node{number}.txt",
    )


@pytest.mark.slow
def test_a_killed_node_resumes(tmp_path):
    """The losses and weights of two nodes, one of which is killed and started again, equal those of one process."""
    write_corpus(tmp_path)
    port = free_port()
    nodes = [start_node(number, port, tmp_path) for number in range(2)]
    attempts, deadline = 2, time.monotonic() + TIMEOUT
    try:
        while any(node.exitcode != 0 for node in nodes):
            for number, node in enumerate(nodes):
                node.join(0.5)
                if node.exitcode not in (None, 0):  # as a scheduler does
                    assert attempts < MAX_ATTEMPTS, (tmp_path / f"node{number}.txt").read_text()[-3000:]
                    nodes[number], attempts = start_node(number, port, tmp_path), attempts + 1
            assert time.monotonic() < deadline
    finally:
        for node in nodes:
            node.kill()
    assert (tmp_path / "killed").exists()
    alone = {**many_devices_worker.OPTIONS, **many_devices_worker.KINDS["alone"]}
    run(tmp_path, "alone", **alone | {"save_steps": SAVE_STEPS})
    state = json.loads((tmp_path / "alone" / "checkpoint-20" / "trainer_state.json").read_text())
    expected = {entry["step"]: entry["loss"] for entry in state["log_history"] if "loss" in entry}
    steps, losses = zip(*map(json.loads, (tmp_path / "losses.jsonl").read_text().splitlines()), strict=True)
    assert sorted({*steps}) == list(range(1, 21))
    assert steps[-10:] == tuple(range(11, 21)), "training must resume from the checkpoint of step 10"
    assert losses == pytest.approx([expected[step] for step in steps], rel=1e-3)
    ours, theirs = (load_file(tmp_path / name / "model.safetensors") for name in ("two_nodes", "alone"))
    for name, weight in theirs.items():
        if not name.endswith("k_proj.bias"):  # no output depends on it: its gradient is rounding error
            assert_near(ours[name], weight, 1e-2)  # Adam also normalizes tiny gradients
