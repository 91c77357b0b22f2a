"""Several processes that share a job, some of which are killed."""

import errno
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from modeling_random_transformer.inference import claims
from modeling_random_transformer.inference.claims import Claims
from modeling_random_transformer.inference.jobs import run_job
from modeling_random_transformer.inference.parts import Job
from tests.helpers.interruption import killed_after
from tests.helpers.processes import WAIT_LIMIT

CHUNKS = 12
JOB = Job(3 * CHUNKS - 1, "digest", list(range(0, 3 * CHUNKS, 3)), 3, "model", {})
EXPECTED = "".join(f"line {index}\n" for index in range(JOB.lines))
MODEL = SimpleNamespace(device=torch.device("cpu"))
FORK = multiprocessing.get_context("fork")

pytestmark = pytest.mark.usefixtures("_state_on_cpu")


@pytest.fixture
def output(tmp_path):
    return tmp_path / "output.txt"


def write(output, started=lambda _: None, restart=False):
    """Run the job; `started` is called with the number of each chunk before it is computed."""

    def process(job, numbers, update):
        for number in numbers:
            started(number)
            first, count = number * job.chunk_size, job.lines_of(number)
            update(count)
            yield number, [f"line {index}" for index in range(first, first + count)]

    run_job(output, MODEL, lambda: JOB, process, restart=restart, progress=False)


def start(output, started):
    process = FORK.Process(target=write, args=(output, started))
    process.start()
    return process


def finish(process):
    process.join(WAIT_LIMIT)
    assert process.exitcode == 0


def assert_complete(output):
    assert output.read_text() == EXPECTED
    assert list(output.parent.iterdir()) == [output]


class Log:
    """Numbers of chunks, written by several processes."""

    def __init__(self):
        self.reading, self.writing = os.pipe()

    def add(self, number):
        os.write(self.writing, bytes([number]))

    def numbers(self):
        os.close(self.writing)
        with open(self.reading, "rb") as file:
            return list(file.read())


def test_every_chunk_is_computed_once(output):
    """Each process computes at least one."""
    log, barrier = Log(), FORK.Barrier(3)

    def started(number):
        nonlocal first
        log.add(number)
        if first:
            barrier.wait(WAIT_LIMIT)
        first = False

    first = True
    for process in [start(output, started) for _ in range(3)]:
        finish(process)
    assert_complete(output)
    assert sorted(log.numbers()) == list(range(CHUNKS))


@pytest.mark.parametrize("chunks", [1, 2, 5])
def test_a_chunk_of_a_killed_process_is_computed_by_another(output, chunks):
    """One process is killed in its n-th chunk, while the other has claimed a later one."""
    log, claimed, killed = Log(), FORK.Event(), FORK.Event()
    left = chunks

    def kill(number):
        nonlocal left
        left -= 1
        log.add(number)
        if left == 0:
            killed.set()
            assert claimed.wait(WAIT_LIMIT)
            os.kill(os.getpid(), signal.SIGKILL)

    def survive(number):
        log.add(number)
        claimed.set()

    victim = start(output, kill)
    assert killed.wait(WAIT_LIMIT)
    finish(start(output, survive))
    victim.join(WAIT_LIMIT)
    assert victim.exitcode == -signal.SIGKILL
    assert_complete(output)
    assert sorted(log.numbers()) == sorted([*range(CHUNKS), chunks - 1])


def test_kills_at_random_times(output):
    draw = random.Random(7)
    for _ in range(8):
        survivor = start(output, lambda _: time.sleep(0.001))
        killed_after(draw.randrange(60), lambda: write(output), output.parent)
        finish(survivor)
        # The killed process may have started the job again after the other had completed it.
        write(output)
        assert_complete(output)
        output.unlink()


def test_restart_during_another_call(output):
    started, stop = FORK.Event(), FORK.Event()

    def block(_):
        started.set()
        assert stop.wait(WAIT_LIMIT)

    process = start(output, block)
    assert started.wait(WAIT_LIMIT)
    with pytest.raises(ValueError, match=r"restart must be False while another process writes .*output\.txt, got True"):
        write(output, restart=True)
    stop.set()
    finish(process)
    assert_complete(output)


def test_an_error_releases_the_claims(output):
    def fail(number):
        if number == 2:
            raise ValueError("line 7 is too long.")

    with pytest.raises(ValueError, match="line 7"):
        write(output, fail)
    finish(start(output, lambda _: None))
    assert_complete(output)


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_file_system_without_locks(output, monkeypatch, number):
    """One process needs no locks."""

    def lockf(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(claims, "fcntl", SimpleNamespace(lockf=lockf, LOCK_EX=2, LOCK_NB=4, LOCK_UN=8))
    with (
        pytest.raises(ValueError, match=r"output_file must be on a file system with file locks if several processes"),
        Claims(output, create=True, required=True) as file,
        file.chunk(0),
    ):
        pass
    output.unlink()
    write(output)
    assert_complete(output)


def test_platform_without_locks(output, monkeypatch):
    monkeypatch.setattr(claims, "fcntl", None)
    write(output)
    assert_complete(output)


def test_claims_file_of_a_complete_job(tmp_path: Path):
    with Claims(tmp_path / "claims", create=True) as file:
        assert file.is_current()
        (tmp_path / "claims").unlink()
        assert not file.is_current()
    with pytest.raises(FileNotFoundError):
        Claims(tmp_path / "claims")
