"""Processes that are measured: started, waited for, watched, ended. Knows nothing of what they do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parent.parent
_RETRY_S = 0.002


@dataclass(frozen=True)
class Server:
    """A running server process and where it listens. `started` is the moment before its start."""

    process: subprocess.Popen[bytes]
    host: str
    port: int
    started: float

    def family(self) -> list[psutil.Process]:
        """Return the server process and everything it started."""
        server = psutil.Process(self.process.pid)
        return [server, *server.children(recursive=True)]


@contextmanager
def serving(
    command: Sequence[str], port: int, path: str = "/health", env: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start a server and wait until it answers 200 on `path`; end it with everything it started.

    Raises RuntimeError when it ends by itself or is not there after a minute.
    """
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        stdout=subprocess.DEVNULL,
        stdin=subprocess.DEVNULL,
    )
    server = Server(process, "127.0.0.1", port, started)
    try:
        wait_for(server, path)
        yield server
    finally:
        family = server.family() if process.poll() is None else []
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for left in family[1:]:
            # A worker that outlives its server would spoil the next measurement.
            if left.is_running():
                left.kill()


def wait_for(server: Server, path: str, timeout_s: float = 60) -> float:
    """Return the seconds from the start of the process until `path` answers 200.

    Asks again and again: from outside there is nothing else to wait on.
    """
    while time.monotonic() - server.started < timeout_s:
        if server.process.poll() is not None:
            raise RuntimeError(f"the server ended with code {server.process.returncode} before it served")
        if status(server.host, server.port, path) == 200:
            return time.monotonic() - server.started
        time.sleep(_RETRY_S)  # another process comes up: no event tells of it
    raise RuntimeError(f"the server did not answer 200 on {path} within {timeout_s:g} s")


def status(host: str, port: int, path: str) -> int | None:
    """Return the status of a GET, None when nobody listens."""
    try:
        with socket.create_connection((host, port), timeout=10) as connection:
            connection.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            line = connection.makefile("rb").readline().split()
    except OSError:
        return None
    return int(line[1]) if len(line) > 1 else None


def free_port() -> int:
    """Return a port nobody listens on now. Another program may take it before it is used."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def cpu_s(processes: Sequence[psutil.Process]) -> float:
    """Return the seconds of processor time these processes have used, user and system."""
    total = 0.0
    for process in processes:
        times = process.cpu_times()
        total += times.user + times.system
    return total


def rss_mb(process: psutil.Process) -> float:
    """Return what of the process lies in memory, MB of 2**20 bytes; shared libraries count whole."""
    resident: int = process.memory_info().rss
    return resident / 2**20


def python(*arguments: str) -> list[str]:
    """Return the command that runs this interpreter."""
    return [sys.executable, *arguments]
