"""Writes the log in a thread of its own: whoever reads it may pause, the server goes on.

Lines wait in a queue of bounded length. Those that find it full are dropped and counted, and the count is
logged where they would have stood, once there is room again.
"""

from __future__ import annotations

import logging
import queue
import threading

from server.streams import write_all

MOST_LINES = 4096
# How long the end of the process may wait for what is still to be written.
FLUSH_S = 1.0


class PatientHandler(logging.Handler):
    """A handler that never blocks and never fails. It does not own the file descriptor `number`."""

    def __init__(self, number: int, most_lines: int = MOST_LINES) -> None:
        super().__init__()
        self._number = number
        # Each with how many lines are lost if it is: one, or those that it tells of.
        self._lines: queue.Queue[tuple[bytes, int] | None] = queue.Queue(most_lines)
        self._dropped = 0
        self._refused = 0  # by the system; only the thread adds to it, and all of them ever
        self._refused_before = 0
        self._closed = False
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record's line, formatted here, where its request is known."""
        try:
            line = self.format(record)
        except Exception:  # as logging's own handlers do: a bad record must not end who logs it
            self.handleError(record)
            return
        if self._tell_dropped():
            self._put(line)
        else:
            self._dropped += 1  # even if there is room by now: lines and gaps keep their order

    def close(self) -> None:
        """Write what waits, as far as that goes in FLUSH_S. Later records are dropped."""
        if not self._closed:
            self._closed = True
            self._tell_dropped()
            try:
                self._lines.put(None, timeout=FLUSH_S)
                self._thread.join(FLUSH_S)
            except queue.Full:
                pass  # nobody reads: the thread ends with the process
        super().close()

    def _tell_dropped(self) -> bool:
        """Queue a line about what was dropped. Returns whether nothing is left to be told."""
        refused = self._refused
        lost = self._dropped + refused - self._refused_before
        if not lost:
            return True
        if self._lines.full():
            return False
        self._dropped, self._refused_before = 0, refused
        told = "%d lines of the log were dropped here"
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, told, (lost,), None)
        return self._put(self.format(record), lost)

    def _put(self, line: str, weight: int = 1) -> bool:
        try:
            self._lines.put_nowait((f"{line}\n".encode(errors="backslashreplace"), weight))
        except queue.Full:
            self._dropped += weight
            return False
        return True

    def _write(self) -> None:
        while (item := self._lines.get()) is not None:
            line, weight = item
            try:
                write_all(self._number, line)
            except OSError:  # a full disk, a reader who has gone: the next line may do better
                self._refused += weight
