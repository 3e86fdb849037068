"""What a worker and its libraries print: read line by line, logged, the last lines kept for error messages.

A worker that prints without end is slowed down by its own full pipe: so much is read and so many lines are
logged in a while, and no more. Blocks nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque

logger = logging.getLogger(__name__)

READ_BYTES = 16 * 1024
MAX_LINE_CHARS = 1000
KEPT_LINES = 20
WINDOW_S = 0.25
WINDOW_BYTES = 64 * 1024
WINDOW_LINES = 50


class WorkerOutput:
    """Reads `fd`, the worker's stdout and stderr in one pipe, and owns it until `close`."""

    def __init__(self, fd: int, model_id: str, pid: int) -> None:
        os.set_blocking(fd, False)
        self._loop = asyncio.get_running_loop()
        self._fd = fd
        self._model_id = model_id
        self._pid = pid
        self._partial = b""
        self._tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._window_end = 0.0
        self._bytes_left = 0
        self._lines_left = 0
        self._unlogged = 0
        self._resume: asyncio.TimerHandle | None = None
        self._open = True
        self._loop.add_reader(fd, self._readable)

    def tail(self) -> list[str]:
        """Return the last lines, oldest first, since the start or since `forget`."""
        return list(self._tail)

    def forget(self) -> None:
        """Drop the lines that are kept, so that what is printed for one client is not shown to the next."""
        self._tail.clear()

    def close(self) -> None:
        """Read what a worker that has ended left behind, then close the pipe."""
        if not self._open:
            return
        self._pause()
        self._open_window()
        left = WINDOW_BYTES
        while left > 0 and (data := self._read()):
            left -= len(data)
            self._take(data)
        self._take(b"\n" if self._partial else b"")
        self._report_unlogged()
        self._stop_resume()
        os.close(self._fd)
        self._open = False

    def _readable(self) -> None:
        if self._loop.time() >= self._window_end:
            self._open_window()
        data = self._read()
        if data is None:
            return
        if not data:
            self._pause()  # everyone who could print has closed it
            return
        self._take(data)
        self._bytes_left -= len(data)
        if self._bytes_left <= 0:
            self._pause()
            self._resume = self._loop.call_at(self._window_end, self._go_on)

    def _open_window(self) -> None:
        self._report_unlogged()
        self._window_end = self._loop.time() + WINDOW_S
        self._bytes_left = WINDOW_BYTES
        self._lines_left = WINDOW_LINES

    def _go_on(self) -> None:
        self._resume = None
        self._loop.add_reader(self._fd, self._readable)

    def _pause(self) -> None:
        self._loop.remove_reader(self._fd)

    def _stop_resume(self) -> None:
        if self._resume is not None:
            self._resume.cancel()
            self._resume = None

    def _read(self) -> bytes | None:
        try:
            return os.read(self._fd, READ_BYTES)
        except BlockingIOError:
            return None

    def _take(self, data: bytes) -> None:
        # A progress bar ends its lines with a carriage return.
        *lines, rest = (self._partial + data).replace(b"\r", b"\n").split(b"\n")
        if len(rest) > MAX_LINE_CHARS:
            lines.append(rest)
            rest = b""
        self._partial = rest
        # Only the last of very many lines can be of use; the others are counted.
        for line in lines[: -WINDOW_LINES or None]:
            self._unlogged += bool(line.strip())
        for line in lines[-WINDOW_LINES:]:
            if line.strip():
                self._line(_printable(line[:MAX_LINE_CHARS]))

    def _line(self, line: str) -> None:
        self._tail.append(line)
        if self._lines_left > 0:
            self._lines_left -= 1
            self._log(line)
        else:
            self._unlogged += 1

    def _report_unlogged(self) -> None:
        if self._unlogged:
            self._log(f"(prints too much: {self._unlogged} more lines not logged)")
            self._unlogged = 0

    def _log(self, line: str) -> None:
        logger.info(
            "%s[%d]: %s",
            self._model_id,
            self._pid,
            line,
            extra={"model": self._model_id, "worker_pid": self._pid},
        )


def _printable(line: bytes) -> str:
    """Decode a line for a log: no control character or line separator gets through as such."""
    text = line.decode("utf-8", "replace").rstrip()
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text
    )
