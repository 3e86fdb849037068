"""Signals to a whole process group are for the server: a worker is spared from its first instruction on."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from server.errors import BackendCrashed
from server.scheduling.dispatcher import DEFAULT_WORKER_COMMAND
from server.workers.client import WorkerClient
from server.workers.timeouts import Timeouts
from tests.server.workers.harness import children, spec, until
from tests.tiny import tiny_folder

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.mark.parametrize("signum", SIGNALS)
async def test_a_worker_that_starts_and_loads(tmp_path: Path, signum: signal.Signals) -> None:
    folder = tiny_folder(tmp_path, layers=1)
    timeouts = Timeouts(load_s=60.0, heartbeat_s=60.0, stall_s=60.0, abort_grace_s=60.0)
    client = await WorkerClient.start(DEFAULT_WORKER_COMMAND, spec(folder), timeouts, lambda _: None)
    try:
        loaded = asyncio.ensure_future(client.loaded())
        while not loaded.done():
            os.killpg(client.pid, signum)
            await asyncio.wait([loaded], timeout=0.005)
        assert (await loaded).vocab_size > 0
        ignored = _signals_of(client.pid, "SigIgn")
        assert all(ignored >> (number - 1) & 1 for number in SIGNALS)
        # Not at each moment: glibc blocks all of them while it starts a thread.
        await until(lambda: _signals_of(client.pid, "SigBlk") == 0, "signals that are not blocked")
        assert client._process.output.tail() == []
    finally:
        client.kill(BackendCrashed("the test is over"), "the test is over")
        await asyncio.wait_for(client.gone, 10)
    assert client.pid not in children()


def test_this_process_gets_them_as_before() -> None:
    assert _signals_of(os.getpid(), "SigBlk") == 0


def _signals_of(pid: int, which: str) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(which)), 16)
