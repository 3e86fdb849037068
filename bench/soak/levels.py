"""What the server holds when nobody asks it anything: memory, files, threads, processes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass

import psutil

from bench.soak.checks import Wrong
from bench.soak.place import Place

QUIET_S = 60.0
_LOOK_S = 0.1
# Of each worker: its socket, its pipe, its pidfd.
FILES_OF_A_WORKER = 3


@dataclass(frozen=True)
class Level:
    """files: those that belong to no worker. workers: their processes' ids."""

    memory_mb: float
    files: int
    threads: int
    workers: int


async def level(place: Place) -> Level:
    """Return what is held once no connection and no ending worker is left. Raises Wrong if some stay."""
    deadline = time.monotonic() + QUIET_S
    while True:
        workers = place.workers()
        connections = place.process.net_connections("tcp")
        busy = [one for one in connections if one.status not in ("LISTEN", "NONE")]
        ended = [one for one in workers if _ended(one)]
        if not busy and not ended:
            break
        if time.monotonic() > deadline:
            raise Wrong(
                f"{len(busy)} connections and {len(ended)} ended workers are left after {QUIET_S:g} s"
            )
        await asyncio.sleep(_LOOK_S)  # another process: no event of it comes here
    with place.process.oneshot():
        return Level(
            memory_mb=place.process.memory_info().rss / 2**20,
            files=place.process.num_fds() - FILES_OF_A_WORKER * len(workers),
            threads=place.process.num_threads(),
            workers=len(workers),
        )


def _ended(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    return True
