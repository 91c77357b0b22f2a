"""Claims of chunks by concurrent processes: locks on bytes of a file.

The kernel, or the server of a network file system, releases the locks of a process that ends, even if it is killed.
Its chunks can then be claimed by others. Unlike modification times, locks need no timeout, which would also delay
every resumed call, and no clocks that agree. Record locks (POSIX) also work between machines, unlike those of `flock`
on some network file systems.
"""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Claims:
    """The locks of this process on one file. Byte 0 stands for the job, and byte n + 1 for chunk n.

    A process must not open the file a second time while it holds a lock: closing any of them releases its locks.

    Args:
        path: the file.
        create: create the file if it does not exist.
        required: raise an error if the file system has no locks. Otherwise, every claim succeeds in this case.

    Raises:
        FileNotFoundError: the file does not exist, and `create` is `False`.
    """

    def __init__(self, path: Path, *, create: bool = False, required: bool = False):
        self.path = path
        self.required = required
        self._has_locks = True
        self._file = os.open(path, os.O_RDWR | (os.O_CREAT if create else 0), 0o666)

    def __enter__(self) -> "Claims":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        os.close(self._file)

    def is_current(self) -> bool:
        """Whether the file still has its name: it is deleted when the job is complete."""
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self.path))
        except FileNotFoundError:
            return False

    @contextmanager
    def job(self) -> Iterator[None]:
        """Hold the job, so that no other process begins or completes it; waits for others."""
        with self._hold(0, 1, wait=True):
            yield

    @contextmanager
    def chunk(self, number: int) -> Iterator[bool]:
        """Claim a chunk; yields whether no other process holds it."""
        with self._hold(number + 1, 1, wait=False) as is_held:
            yield is_held

    @contextmanager
    def everything(self, *, wait: bool) -> Iterator[bool]:
        """Hold the job and all chunks; yields `False` if another process holds any of them and `wait` is `False`."""
        with self._hold(0, 0, wait=wait) as is_held:
            yield is_held

    @contextmanager
    def _hold(self, start: int, count: int, *, wait: bool) -> Iterator[bool]:
        """Lock `count` bytes, all bytes for 0.

        Raises:
            ValueError: the file system has no locks, which are required.
        """
        if not self._lock(start, count, wait=wait):
            yield False
            return
        try:
            yield True
        finally:
            if self._has_locks:
                fcntl.lockf(self._file, fcntl.LOCK_UN, count, start)

    def _lock(self, start: int, count: int, *, wait: bool) -> bool:
        try:
            if fcntl is None:
                raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
            fcntl.lockf(self._file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB, count, start)
        except (BlockingIOError, PermissionError):  # held by another process
            return False
        except OSError as error:
            if error.errno not in UNSUPPORTED:
                raise
            if self.required:
                raise ValueError(
                    "output_file must be on a file system with file locks if several processes write it, "
                    f"got {str(self.path.parent)!r}: {error.strerror}."
                ) from error
            self._has_locks = False
        return True
