"""What a C library prints, line by line, while it still reaches the process's stderr.

File descriptors 1 and 2 become one pipe, which a thread reads: it writes on to the real stderr at once and
keeps the lines. `sync` says when everything printed so far has been kept. Python's own stdout and stderr keep
the real ones, so that a traceback written just before the process ends is not lost in the pipe.

What the library prints in the instant before it crashes may be lost; whatever is older is not.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import itertools
import os
import secrets
import sys
import threading
from collections import deque
from types import TracebackType
from typing import TextIO

READ_BYTES = 64 * 1024
KEPT_LINES = 500  # the last ones, and as many from the latest mark on: a load names its versions first
MAX_LINE_BYTES = 4096
SYNC_S = 5.0  # stderr's reader may hold up the thread; what it has not passed on by then is not waited for


class Capture:
    """Captures from `start` to `close`. `mark` gives a place among the lines, `since` what followed it.

    One at a time in a process. `start` and `close` from one thread, the rest from any.
    """

    def __init__(self) -> None:
        self._lock = threading.Condition()
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._first: list[str] = []  # lines from the latest mark on
        self._marked = 0
        self._count = 0
        self._secret = secrets.token_hex(16).encode()  # begins a line of our own, and no other
        self._syncs_sent = itertools.count(1)
        self._syncs_seen = 0
        self._partial = b""
        self._real: tuple[int, int] | None = None
        self._python: tuple[TextIO, TextIO] | None = None
        self._thread: threading.Thread | None = None
        self._write_fd = -1

    def start(self) -> None:
        """Begin. Raises OSError where descriptors have run out."""
        _flush_c()
        sys.stdout.flush()
        sys.stderr.flush()
        read_fd, self._write_fd = os.pipe()
        real_out, real_err = os.dup(1), os.dup(2)
        self._real = (real_out, real_err)
        self._python = (sys.stdout, sys.stderr)
        sys.stdout, sys.stderr = _writer(real_out), _writer(real_err)
        os.dup2(self._write_fd, 1)
        os.dup2(self._write_fd, 2)
        self._thread = threading.Thread(
            target=self._read, args=(read_fd, real_err), name="capture", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Give descriptors 1 and 2 back. What was printed has been passed on by then. Does nothing twice."""
        if self._real is None or self._python is None or self._thread is None:
            return
        _flush_c()
        real_out, real_err = self._real
        os.dup2(real_out, 1)
        os.dup2(real_err, 2)
        os.close(self._write_fd)
        self._thread.join(SYNC_S)
        sys.stdout, sys.stderr = self._python
        os.close(real_out)
        os.close(real_err)
        self._real = self._python = self._thread = None

    def __enter__(self) -> Capture:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def mark(self) -> int:
        """Return the place after everything printed so far."""
        self.sync()
        with self._lock:
            self._first = []
            self._marked = self._count
            return self._count

    def since(self, mark: int) -> list[str]:
        """Return the lines since a mark; of very many the last ones, and the first since the latest mark."""
        self.sync()
        with self._lock:
            last_from = max(mark, self._count - len(self._lines))
            first = self._first[max(0, mark - self._marked) : max(0, last_from - self._marked)]
            last = self._count - last_from
            return first + (list(self._lines)[-last:] if last > 0 else [])

    def sync(self) -> None:
        """Wait until what has been printed so far is kept: C buffers stdout on a pipe in blocks."""
        if self._real is None:
            return
        _flush_c()
        # A line of our own follows in the same pipe; once it is read, so is all before it.
        with self._lock:
            number = next(self._syncs_sent)
        _write_all(self._write_fd, b"\n%s %d\n" % (self._secret, number))
        with self._lock:
            self._lock.wait_for(lambda: self._syncs_seen >= number, SYNC_S)

    def _read(self, read_fd: int, real_err: int) -> None:
        while data := os.read(read_fd, READ_BYTES):
            *lines, self._partial = (self._partial + data).split(b"\n")
            if len(self._partial) > MAX_LINE_BYTES:
                lines.append(self._partial)
                self._partial = b""
            self._take(lines, real_err)
        if self._partial:
            self._take([self._partial], real_err)
        os.close(read_fd)

    def _take(self, lines: list[bytes], real_err: int) -> None:
        ours = [line for line in lines if line.startswith(self._secret)]
        kept = [line for line in lines if line and line not in ours]
        if kept:
            with contextlib.suppress(OSError):  # nobody reads the real one any more: keep emptying ours
                _write_all(real_err, b"".join(line + b"\n" for line in kept))
        with self._lock:
            decoded = [line.decode("utf-8", "replace").rstrip("\r") for line in kept]
            self._lines.extend(decoded)
            self._first.extend(decoded[: KEPT_LINES - len(self._first)])
            self._count += len(kept)
            if ours:
                self._syncs_seen = max(self._syncs_seen, int(ours[-1].split()[1]))
                self._lock.notify_all()


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _writer(fd: int) -> TextIO:
    return io.TextIOWrapper(
        os.fdopen(fd, "wb", buffering=0, closefd=False), "utf-8", "replace", write_through=True
    )


def _flush_c() -> None:
    # int fflush(FILE *stream); NULL flushes every stream.
    ctypes.CDLL(None).fflush(None)
