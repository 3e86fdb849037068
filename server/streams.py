"""The standard streams as a program finds them: closed, full, or read by nobody. It goes on all the same."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from typing import TextIO


def open_standard_streams() -> None:
    """Put /dev/null where a standard stream is closed; else a socket would get its number, and be written to.

    Called first of all, before anything is opened.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free: this one
    # Python has None for a stream that was closed, which libraries do not expect.
    sys.stdin = sys.stdin or os.fdopen(0, "r", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)


def tell(stream: TextIO, line: str) -> None:
    """Write a line at once, or not at all where it cannot be written."""
    with suppress(OSError):
        try:
            number = stream.fileno()
        except OSError:  # one that a test has put there
            print(line, file=stream, flush=True)
            return
        # What a failed flush leaves in Python's buffer would fail once more at the process's end.
        stream.flush()
        write_all(number, f"{line}\n".encode(errors="backslashreplace"))


def write_all(number: int, data: bytes) -> None:
    """Write all of it to a file descriptor, and wait where that takes its time. Raises OSError."""
    while data:
        try:
            data = data[os.write(number, data) :]
        except BlockingIOError:  # somebody who has the same pipe or terminal has made it so
            writable = select.poll()
            writable.register(number, select.POLLOUT)
            writable.poll()


def settle_standard_streams() -> None:
    """Write what is still buffered, or give it up: Python's own failure to do so would be the exit code."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            with suppress(OSError):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                stream.flush()
