"""Functions that the first process calls, and locks of files, also on file systems without them."""

import errno
import os
from datetime import timedelta

import pytest
import torch.distributed as dist
from accelerate import PartialState
from filelock import FileLock

from modeling_random_transformer.base.distributed import call_on_main_process, exclusive, in_turn
from tests.helpers.processes import run_on_two_processes

LOCKS = {"exclusive": lambda path: exclusive(path, "in use"), "waiting": in_turn}
WORKER = """
import sys, time
from accelerate import PartialState
from modeling_random_transformer.base.distributed import call_on_main_process

class Unpicklable(Exception):
    def __init__(self, first, second):
        super().__init__(f"{first} {second}")

def fail(error):
    raise error

state = PartialState(cpu=True)
assert call_on_main_process(lambda: state.process_index) == 0
for error, message in ((KeyError("key"), "'key'"), (Unpicklable("a", "b"), "a b")):
    try:
        call_on_main_process(lambda: fail(error))
    except Exception as raised:
        expected = type(error) if state.is_main_process or isinstance(error, KeyError) else RuntimeError
        assert type(raised) is expected and message in str(raised), repr(raised)
    else:
        sys.exit("no error")
assert call_on_main_process(lambda: "later") == "later"
state.destroy_process_group()
"""


@pytest.mark.slow
def test_results_and_errors_reach_both_processes(tmp_path):
    (tmp_path / "worker.py").write_text(WORKER)
    done = run_on_two_processes(tmp_path / "worker.py")
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.usefixtures("_state_on_cpu")
@pytest.mark.parametrize("is_main_process", [True, False])
def test_only_the_first_process_calls_the_function(is_main_process, monkeypatch):
    monkeypatch.setattr(PartialState, "is_main_process", is_main_process)
    calls = []
    call_on_main_process(lambda: calls.append("called"))
    assert calls == ["called"] * is_main_process


@pytest.mark.usefixtures("_reset_accelerate")
def test_other_processes_wait_without_the_timeout_of_the_process_group(tmp_path, monkeypatch):
    timeouts = []
    new_group = dist.new_group
    monkeypatch.setattr(
        dist, "new_group", lambda **options: timeouts.append(options["timeout"]) or new_group(**options)
    )
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        assert [call_on_main_process(lambda: 3), call_on_main_process(lambda: 4)] == [3, 4]
    finally:
        dist.destroy_process_group()
    assert len(timeouts) == 1
    assert timeouts[0] > timedelta(days=30)


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, None])
def test_a_file_system_without_locks_is_one_warning(lock, number, tmp_path, monkeypatch, caplog):
    def acquire(*_, **__):
        raise NotImplementedError if number is None else OSError(number, os.strerror(number))

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with LOCKS[lock](tmp_path / "job.lock"):
        pass
    [message] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert message == f"{tmp_path} is on a file system without locks: start one call at a time."


@pytest.mark.parametrize("lock", LOCKS)
@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS, errno.ENOSPC])
def test_other_errors_of_locks_are_errors(lock, number, tmp_path, monkeypatch):
    def acquire(*_, **__):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(FileLock, "acquire", acquire)
    with pytest.raises(OSError, match=os.strerror(number)), LOCKS[lock](tmp_path / "job.lock"):
        pass


def test_a_lock_of_another_call_is_an_error(tmp_path):
    lock, message = tmp_path / "job.lock", "in use"
    with exclusive(lock, message), pytest.raises(ValueError, match=message), exclusive(lock, message):
        pass
