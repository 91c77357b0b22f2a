"""Locks of files, also on file systems without them."""

import errno
import os

import pytest
from filelock import FileLock

from modeling_random_transformer.base.distributed import exclusive, in_turn

LOCKS = {"exclusive": lambda path: exclusive(path, "in use"), "waiting": in_turn}


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
