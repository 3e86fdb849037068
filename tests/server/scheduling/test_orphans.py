"""A server that is killed leaves no worker behind, whatever the worker is doing."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.server.workers.harness import until

SERVER = """
import asyncio, sys
from pathlib import Path
from tests.server.workers.harness import Harness

async def main(directory, load, run):
    h = Harness(Path(directory))
    h.script_load("a", load)
    await h.dispatcher.start()
    async with h.submit("a", *([run] if run else [])) as running:
        async for _, event in running:
            print(type(event).__name__, flush=True)
        print("idle", flush=True)
        await asyncio.Event().wait()

asyncio.run(main(*sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("load", "run", "state"),
    [
        ("", "", "idle"),
        ("", "delay:0.02 endless", "Delta"),
        ("", "prefill:1 hang-in-c", "Prefill"),
        ("", "tokens:1 stop-self", "Delta"),
        ("progress:0.1 hang-in-c", "tokens:1", "Loading"),
        ("progress:0.1 stop-self", "tokens:1", "Loading"),
    ],
)
async def test_a_killed_server_leaves_no_worker(tmp_path: Path, load: str, run: str, state: str) -> None:
    root = str(Path(__file__).parents[3])
    with subprocess.Popen(
        [sys.executable, "-c", SERVER, str(tmp_path), load, run],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": root},
    ) as server:
        assert server.stdout is not None
        while (line := await asyncio.to_thread(server.stdout.readline)).strip() != state.encode():
            assert line, "the server ended"
        worker = int((tmp_path / "a" / "loads").read_text())
        assert psutil.pid_exists(worker)
        server.send_signal(signal.SIGKILL)
        await until(lambda: not _runs(worker), "the worker's end")


def _runs(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
