"""One process of probes: started with a socket, listened to with a time-out, killed with its group."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence

from backends.probing import FromProbes, Plan, decode_message, encode_line

COMMAND = (sys.executable, "-P", "-m", "backends.rkllm.probes")
KEPT_LINES = 400
RECV_BYTES = 64 * 1024
END_S = 10.0  # a core dump takes its time


class Silent(Exception):
    """Nothing came from the process in time."""


class ProbeProcess:
    """A context manager: whatever happens, nothing of the process's group is left at its end.

    Call from the main thread: the process dies with the thread that started it.
    """

    def __init__(self, plan: Plan, command: Sequence[str] = COMMAND) -> None:
        """Start it and hand it the plan. Raises OSError."""
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*command, "--fd", str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    pass_fds=(theirs.fileno(),),
                    start_new_session=True,
                    env={**os.environ, "PYTHONUNBUFFERED": "1"},
                )
        except BaseException:
            ours.close()
            raise
        self._sock = ours
        self._pending = b""
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._reader = threading.Thread(target=self._read_output, name="probe-output", daemon=True)
        self._reader.start()
        with contextlib.suppress(OSError):  # it has ended already: `receive` tells
            ours.sendall(encode_line(plan))

    def __enter__(self) -> ProbeProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def receive(self, timeout_s: float) -> FromProbes | None:
        """Return the next message, None where there will be none. Raises Silent, msgspec.MsgspecError."""
        self._sock.settimeout(timeout_s)
        while b"\n" not in self._pending:
            try:
                data = self._sock.recv(RECV_BYTES)
            except TimeoutError:
                raise Silent from None
            except OSError:
                return None
            if not data:
                return None
            self._pending += data
        line, _, self._pending = self._pending.partition(b"\n")
        return decode_message(line)

    def end(self) -> str:
        """Kill what is left of it; return how it ended, for a person. May be called again."""
        if self._process.returncode is None:
            # One that has closed its socket is about to end by itself, and its status says why.
            if self._closed():
                self._await_end()
            # Before it is reaped: until then its number can be nobody else's.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
        status = self._process.wait()
        self._reader.join()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._sock.close()
        return _described(status)

    def output(self) -> list[str]:
        """Return what it and the library have printed, the last lines."""
        return list(self._lines)

    def _await_end(self) -> None:
        """Wait a little for the process to end, without reaping it."""
        try:
            pidfd = os.pidfd_open(self._process.pid)
        except OSError:
            return  # an emulator without this call
        try:
            select.select([pidfd], [], [], END_S)
        finally:
            os.close(pidfd)

    def _closed(self) -> bool:
        if self._sock.fileno() < 0:
            return True
        self._sock.settimeout(0)
        try:
            return not self._sock.recv(RECV_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def _read_output(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if text := line.decode("utf-8", "replace").rstrip():
                self._lines.append(text[:1000])


def _described(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    if status == -signal.SIGKILL:
        return "was killed, perhaps by the kernel for want of memory,"
    try:
        return f"crashed ({signal.Signals(-status).name})"
    except ValueError:
        return f"crashed (signal {-status})"
