"""Processes on a terminal of their own, as a person has them."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path


def on_a_terminal(
    command: Sequence[str], cwd: Path, environment: Mapping[str, str]
) -> tuple[subprocess.Popen[bytes], int]:
    """Start a process that leads a session on a new terminal; returns it and our side of the terminal.

    Whoever calls closes that side, which is to hang up, and ends the process.
    """
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command,
        cwd=cwd,
        env=environment,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        # Opened by the leader of a session, it becomes that session's controlling terminal.
        preexec_fn=lambda: os.close(os.open(os.ttyname(0), os.O_RDWR)),
    )
    os.close(theirs)
    return process, ours


def read_until(ours: int, wanted: bytes) -> bytes:
    """Read our side of a terminal until it has shown something; returns all that came."""
    shown = b""
    while wanted not in shown:
        shown += os.read(ours, 1000)
    return shown


def read_to_the_end(ours: int) -> bytes:
    """Read our side of a terminal until the process has left it, and close it; returns what came."""
    shown = b""
    with contextlib.suppress(OSError):  # EIO, once the other side is closed
        while piece := os.read(ours, 65536):
            shown += piece
    os.close(ours)
    return shown
