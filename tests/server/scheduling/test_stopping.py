"""Stopping the server, whatever its workers are doing: no process is left, and everyone is told."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backends.protocol import Delta, Finished, Loading, Prefill
from server.errors import ServerBusy
from server.scheduling import Run
from tests.server.workers.harness import children, first, harness, until

GRACE_S = 0.5


async def cut(run: Run) -> str:
    with pytest.raises(ServerBusy) as error:
        async with asyncio.timeout(10):
            async for _ in run:
                pass
    return error.value.message


@pytest.fixture
def others() -> set[int]:
    """What another test of this process may have left behind."""
    return children()


async def test_a_running_answer_may_end_in_the_grace_time(tmp_path: Path) -> None:
    async with harness(tmp_path) as h, h.submit("a", "delay:0.02 tokens:10") as run:
        await first(run, Delta)
        stop = asyncio.ensure_future(h.dispatcher.stop())
        await first(run, Finished)
        await stop


@pytest.mark.parametrize(
    "text",
    ["delay:0.02 endless", "tokens:1 hang", "tokens:1 hang-in-c", "tokens:1 stop-self", "prefill:1 hang"],
)
async def test_one_that_does_not_is_cut(others: set[int], tmp_path: Path, text: str) -> None:
    async with harness(tmp_path, shutdown_grace_s=GRACE_S) as h, h.submit("a", text) as run:
        await first(run, Prefill if text.startswith("prefill") else Delta)
        begun = asyncio.get_running_loop().time()
        await h.dispatcher.stop()
        assert GRACE_S <= asyncio.get_running_loop().time() - begun < GRACE_S + 2
        assert not children() - others
        assert "cut this answer short" in await cut(run)


@pytest.mark.parametrize("command", ["hang", "hang-in-c", "stop-self"])
async def test_a_load_is_given_up_at_once(others: set[int], tmp_path: Path, command: str) -> None:
    async with harness(tmp_path) as h:
        h.script_load("a", f"progress:0.1 {command}")
        async with h.submit("a", "tokens:1") as run:
            await first(run, Loading)
            begun = asyncio.get_running_loop().time()
            await h.dispatcher.stop()
            assert asyncio.get_running_loop().time() - begun < 3  # the grace time is 5
            assert not children() - others
            assert "stopping" in await cut(run)


async def test_a_load_that_is_given_up_makes_one_calm_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with harness(tmp_path, preload=("a",)) as h:
        h.script_load("a", "hang")
        await until(lambda: h.loads("a"), "the load")
        with caplog.at_level("INFO", "server"):
            await h.dispatcher.stop()
        (record,) = caplog.records
        assert record.levelname == "INFO"
        assert record.getMessage() == (
            f"the worker of a, pid {h.loads('a')[0]}, was ended: the server is stopping"
        )


async def test_stopping_just_as_a_worker_starts(others: set[int], tmp_path: Path) -> None:
    async with harness(tmp_path) as h, h.submit("a", "tokens:1") as run:
        await h.dispatcher.stop()
        assert "stopping" in await cut(run)
        assert not children() - others


async def test_those_who_wait_are_told_at_once_and_nobody_new_is_taken(tmp_path: Path) -> None:
    async with harness(tmp_path) as h, h.submit("a", "delay:0.02 tokens:20") as run:
        await first(run, Delta)
        waits = h.submit("a", "tokens:1")
        stop = asyncio.ensure_future(h.dispatcher.stop())
        assert "stopping" in await cut(waits)
        assert not run.ended
        with pytest.raises(ServerBusy, match="stopping"):
            h.submit("a", "tokens:1")
        assert await h.dispatcher.count(h.entries["a"], []) in (0, None)
        await stop


@pytest.mark.parametrize("command", ["hang", "hang-in-c", "stop-self"])
async def test_an_idle_worker_that_does_not_unload(others: set[int], tmp_path: Path, command: str) -> None:
    async with harness(tmp_path, shutdown_grace_s=GRACE_S) as h:
        await h.answer("a", f"close {command}")
        await h.dispatcher.stop()
        assert not children() - others


async def test_stopping_twice_and_stopping_what_never_began(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        await h.dispatcher.stop()
        await h.dispatcher.stop()


async def test_while_another_program_has_the_npu(tmp_path: Path) -> None:
    from server.scheduling.npu_lock import NpuLock

    async with harness(tmp_path, cpu=(), npu=("a",)) as h:
        with NpuLock(tmp_path / "npu.lock"):
            run = h.submit("a", "tokens:1")
            await h.dispatcher.stop()
            assert "stopping" in await cut(run)
