"""The standard streams as a program finds them: closed, full, or read by nobody. It goes on all the same."""

from __future__ import annotations

import os
import select
import sys
from contextlib import suppress
from typing import TextIO


def open_standard_streams() -> None:
    """Put /dev/null where a standard stream is closed (`>&-`); else a socket would get its number.

    Called first of all, before anything is opened. Writing to a closed standard output stays an error;
    messages to a closed standard error are lost.
    """
    streams = (("stdin", os.O_RDONLY), ("stdout", os.O_RDONLY), ("stderr", os.O_WRONLY))
    for number, (name, flags) in enumerate(streams):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # gets the lowest number that is free: this one
            os.set_inheritable(number, True)
        # Python has None for a stream that was closed, which libraries do not expect.
        if getattr(sys, name) is None:
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8", closefd=False))


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
