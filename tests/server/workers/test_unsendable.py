"""What has no encoding is an error at once, for whoever asked, and nobody waits for an answer to it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from backends.base import Sampling, Span
from backends.spec import ModelSpec
from server.errors import BackendCrashed, InvalidRequest, LoadFailed
from server.workers.client import WorkerClient
from server.workers.pending import RunEvent
from server.workers.timeouts import Timeouts
from tests.server.workers.harness import WORKER_COMMAND, children, params, spec

TIMEOUTS = Timeouts(load_s=60.0, heartbeat_s=60.0, stall_s=60.0, abort_grace_s=60.0)
HALF = "\ud800"  # of a character


async def start(told: ModelSpec) -> WorkerClient:
    return await WorkerClient.start(WORKER_COMMAND, told, TIMEOUTS, lambda _: None)


async def end(client: WorkerClient) -> None:
    client.kill(BackendCrashed("the test is over"), "the test is over")
    await asyncio.wait_for(client.gone, 10)
    assert client.pid not in children()


@pytest.mark.parametrize(
    "change", [{"eos": [2**64]}, {"eos": [HALF]}, {"path": "/models/\udcff"}, {"stop": [HALF]}]
)
async def test_a_load(tmp_path: Path, change: dict[str, object]) -> None:
    client = await start(msgspec.structs.replace(spec(tmp_path), **change))
    try:
        with pytest.raises(LoadFailed, match=r"scripted cannot be loaded: a Load cannot be sent"):
            await asyncio.wait_for(client.loaded(), 10)
        assert isinstance(client.failure, LoadFailed)
    finally:
        await end(client)


async def test_an_answer_and_a_count_of_a_worker_that_goes_on(tmp_path: Path) -> None:
    client = await start(spec(tmp_path))
    try:
        await asyncio.wait_for(client.loaded(), 20)
        events: list[RunEvent] = []
        with pytest.raises(InvalidRequest, match="a Generate cannot be sent"):
            await client.generate(params(HALF), events.append)
        far = msgspec.structs.replace(params("tokens:1"), sampling=Sampling(seed=2**64))
        with pytest.raises(InvalidRequest, match="a Generate cannot be sent"):
            await client.generate(far, events.append)
        with pytest.raises(InvalidRequest, match="a Count cannot be sent"):
            await client.count([Span(HALF, False)])
        assert not client.busy
        assert events == []
        await client.generate(params("tokens:1"), events.append)
        assert len(events) == 2
        assert await client.count([Span("four", False)]) == 4
    finally:
        await end(client)
