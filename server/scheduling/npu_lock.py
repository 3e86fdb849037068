"""The lock file that the programs that use the NPU take in turn: the server and `rkserve doctor --deep`.

Two programs on the NPU at once have frozen boards, so each holds this lock for one run or one load. It is
advisory (flock) and the kernel drops it with the process that holds it. Knows no loop: see `npu_turn`.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

LOCK_NAME = "rkserve-npu.lock"


def default_lock_path(sysroot: Path = Path("/")) -> Path:
    """Return where the lock lies: /run/lock, the same for every user, else the temporary directory."""
    shared = sysroot / "run/lock"
    return (shared if shared.is_dir() else Path(tempfile.gettempdir())) / LOCK_NAME


class NpuLock:
    """The lock, held by at most one NpuLock at a time on a machine. Not for use by two threads at once."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or default_lock_path()
        self._fd: int | None = None

    def try_acquire(self) -> bool:
        """Take the lock if it is free. Returns whether it was. Raises OSError if it cannot be opened."""
        return self._lock(fcntl.LOCK_EX | fcntl.LOCK_NB)

    def acquire(self) -> None:
        """Take the lock, waiting for it. Raises OSError if the file cannot be opened."""
        self._lock(fcntl.LOCK_EX)

    def release(self) -> None:
        """Give the lock back, if it is held."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _lock(self, operation: int) -> bool:
        assert self._fd is None, "the lock is held already"
        fd = self._open()
        try:
            fcntl.flock(fd, operation)
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd
        return True

    def _open(self) -> int:
        # Read-only is enough for flock, so a file of another user serves as well; and in a directory that all
        # may write to the kernel refuses O_CREAT on such a file (fs.protected_regular), so it comes second.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return os.open(self.path, flags)
        except FileNotFoundError:
            return os.open(self.path, flags | os.O_CREAT, 0o644)
