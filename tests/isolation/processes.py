"""The server's process and its worker's, seen from outside: memory and open files."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import psutil

SETTLE_S = 10


@dataclass(frozen=True)
class Usage:
    """What a process holds."""

    memory_mb: float
    files: int


def server_process(url: str) -> psutil.Process:
    """Return the child of this process that listens on the URL's port."""
    port = int(url.rpartition(":")[2])
    for child in psutil.Process().children():
        if any(c.laddr.port == port and c.status == "LISTEN" for c in child.net_connections("tcp")):
            return child
    raise AssertionError(f"no child of this process listens on {url}")


def worker_process(server: psutil.Process) -> psutil.Process:
    """Return the server's only worker, once those before it are gone."""
    assert eventually(lambda: len(server.children()) == 1)
    (worker,) = server.children()
    return worker


def usage(process: psutil.Process) -> Usage:
    """Return what a process holds now."""
    return Usage(process.memory_info().rss / 2**20, process.num_fds())


def eventually(holds: Callable[[], bool]) -> bool:
    """Return whether something becomes true in another process, which sends no event of it, in SETTLE_S."""
    deadline = time.monotonic() + SETTLE_S
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
