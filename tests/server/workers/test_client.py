"""A worker as the server speaks to it: what the dispatcher's tests do not reach."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from backends.protocol import Delta, Loading, Prefill
from server.errors import BackendCrashed, BackendTimeout, LoadFailed
from server.workers.client import WorkerClient
from server.workers.pending import RunEvent
from server.workers.timeouts import Timeouts
from tests.server.workers.harness import WORKER_COMMAND, children, params, spec
from tests.server.workers.scripted import LOAD_SCRIPT

PATIENT = {"load_s": 20.0, "heartbeat_s": 20.0, "stall_s": 20.0, "abort_grace_s": 20.0}


@asynccontextmanager
async def client(path: Path, command: Any = WORKER_COMMAND, **timeouts: float) -> AsyncIterator[WorkerClient]:
    loading: list[Loading] = []
    made = await WorkerClient.start(command, spec(path), Timeouts(**(PATIENT | timeouts)), loading.append)
    try:
        yield made
    finally:
        made.kill(BackendCrashed("the test is over"), "the test is over")
        await asyncio.wait_for(made.gone, 10)
        assert made.pid not in children()


async def test_prefill_may_be_silent_for_as_long_as_its_tokens_allow(tmp_path: Path) -> None:
    # 0.2 s and 0.01 s for each of the tokens left: 0.3 s after the report, less than the hang.
    async with client(tmp_path, prefill_s=0.2, prefill_s_per_token=0.01) as made:
        await made.loaded()
        events: list[RunEvent] = []
        loop = asyncio.get_running_loop()
        begun = loop.time()
        with pytest.raises(BackendTimeout, match="no progress"):
            await made.generate(params("prefill-of:10 hang"), events.append)
        assert events == [Prefill(1, 0, 10)]
        assert 0.3 <= loop.time() - begun < 3


async def test_before_prefill_is_reported_the_prompt_s_size_counts(tmp_path: Path) -> None:
    async with client(tmp_path, prefill_s=0.1, prefill_s_per_token=0.02) as made:
        await made.loaded()
        events: list[RunEvent] = []
        text = "hang:0.6 tokens:1"
        await made.generate(params(text + " " * (100 - len(text))), events.append)  # 2.1 s for 100 bytes
        assert isinstance(events[0], Delta)


async def test_each_report_of_prefill_gives_new_time(tmp_path: Path) -> None:
    async with client(tmp_path, prefill_s=0.8, prefill_s_per_token=0) as made:
        await made.loaded()
        events: list[RunEvent] = []
        await made.generate(params("delay:0.3 prefill:5 tokens:1"), events.append)
        assert sum(isinstance(event, Prefill) for event in events) == 5


async def test_a_command_that_is_no_worker(tmp_path: Path) -> None:
    async with client(tmp_path, ("/bin/sh", "-c", "echo not a worker; exit 4")) as made:
        with pytest.raises(LoadFailed, match=r"status 4 .*not a worker"):
            await made.loaded()


async def test_a_worker_that_sends_nonsense_is_ended(tmp_path: Path) -> None:
    code = "import os, sys, time; os.write(int(sys.argv[2]), b'\\xff' * 9); time.sleep(99)"
    async with client(tmp_path, (sys.executable, "-c", code)) as made:
        with pytest.raises(BackendCrashed, match="nonsense"):
            await made.loaded()


async def test_a_worker_that_closes_its_socket_and_goes_on_is_ended(tmp_path: Path) -> None:
    code = "import os, sys, time; os.close(int(sys.argv[2])); time.sleep(99)"
    async with client(tmp_path, (sys.executable, "-c", code), abort_grace_s=0.2) as made:
        with pytest.raises(BackendTimeout, match="closed its connection"):
            await made.loaded()


async def test_a_worker_that_never_says_anything_is_ended(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "import time; time.sleep(99)")
    async with client(tmp_path, command, start_s=0.5, heartbeat_s=0.1) as made:
        with pytest.raises(BackendTimeout, match=r"no sign of life for 0\.5 s"):
            await made.loaded()


async def test_everyone_who_waits_is_told_of_the_end(tmp_path: Path) -> None:
    async with client(tmp_path) as made:
        await made.loaded()
        run = asyncio.ensure_future(made.generate(params("hang"), lambda _: None))
        count = asyncio.ensure_future(made.count(params("slow-count").prompt))
        await asyncio.sleep(0.1)
        made.kill(BackendTimeout("enough"), "enough")
        for waiting in (run, count):
            with pytest.raises(BackendTimeout, match="enough"):
                await waiting
        with pytest.raises(BackendCrashed):
            await made.generate(params("tokens:1"), lambda _: None)
        with pytest.raises(BackendCrashed):
            await made.count([])


async def test_loading_is_reported(tmp_path: Path) -> None:
    (tmp_path / LOAD_SCRIPT).write_text("progress:0.25 progress:0.75")
    reports: list[Loading] = []
    made = await WorkerClient.start(WORKER_COMMAND, spec(tmp_path), Timeouts(**PATIENT), reports.append)
    await made.loaded()
    assert reports == [Loading(0.25, "reading"), Loading(0.75, "reading")]
    made.unload()
    await asyncio.wait_for(made.gone, 10)
