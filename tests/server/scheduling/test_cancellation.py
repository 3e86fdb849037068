"""A client that leaves, in every state of its job: the work ends, and the next job is served."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from backends.protocol import Delta, Finished, Loading, Prefill
from server.scheduling import Event, Queued, Run
from tests.server.workers.harness import PATIENCE_S, children, first, harness, until


async def leave_at(run: Run, kind: type[Event]) -> None:
    """Leave a run as a server does whose client has gone: its task is cancelled."""
    reached = asyncio.Event()

    async def read() -> None:
        async with run:
            async for _, event in run:
                if isinstance(event, kind):
                    reached.set()

    task = asyncio.ensure_future(read())
    async with asyncio.timeout(PATIENCE_S):
        await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_while_queued(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        async with h.submit("a", "endless") as one:
            await first(one, Delta)
            await leave_at(h.submit("a", "exit:9"), Queued)
            assert h.status("a").waiting == 0
        assert await h.answer("a", "runs") == "2"  # the one that left was never begun


async def test_while_loading_the_load_is_not_wasted(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        h.script_load("a", "progress:0.5 hang:0.2")
        await leave_at(h.submit("a", "exit:9"), Loading)
        assert h.status("a").loading
        await until(lambda: h.status("a").loaded, "the load")
        assert await h.answer("a", "runs") == "1"
        assert len(h.loads("a")) == 1


async def test_before_the_load_has_begun_there_is_none(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        async with h.submit("a", "tokens:1"):
            pass
        await until(lambda: not h.status("a").loading)
        assert h.loads("a") == []


async def test_all_who_wait_for_a_load_leave(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        h.script_load("a", "progress:0.5 hang:0.2")
        await asyncio.gather(*(leave_at(h.submit("a", "exit:9"), Loading) for _ in range(3)))
        await until(lambda: h.status("a").loaded, "the load")
        assert (await h.answer("a", "runs"), len(h.loads("a"))) == ("1", 1)


@pytest.mark.parametrize(
    ("text", "kind"), [("delay:0.02 prefill:1000 exit:9", Prefill), ("delay:0.02 endless", Delta)]
)
async def test_while_running_it_ends_at_the_next_step(tmp_path: Path, text: str, kind: type[Event]) -> None:
    async with harness(tmp_path) as h:
        pid = await h.answer("a", "pid")
        await leave_at(h.submit("a", text), kind)
        assert await h.answer("a", "pid") == pid  # the worker goes on, free again


async def test_between_two_answers_of_a_job_the_second_is_not_begun(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        async with h.submit("a", "endless", "exit:9") as run:
            await first(run, Delta)
        assert await h.answer("a", "runs") == "2"


async def test_just_before_the_end(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        for _ in range(20):
            async with h.submit("a", "tokens:3") as run:
                for _ in range(3):
                    await first(run, Delta)
        assert await h.answer("a", "runs") == "21"


async def test_after_the_end(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        async with h.submit("a", "tokens:1") as run:
            await first(run, Finished)
        assert await h.answer("a", "runs") == "2"


async def test_before_anything_was_read(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        await h.answer("a", "pid")
        async with h.submit("a", "endless"):
            pass
        assert await h.answer("a", "tokens:1") == "t0 "


async def test_the_npu_is_not_given_on_while_a_worker_still_dies(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=(), npu=("a", "b"), abort_grace_s=0.2) as h:
        pid = int(await h.answer("a", "pid"))
        await h.answer("b", "tokens:1")
        await leave_at(h.submit("a", "tokens:1 hang"), Delta)
        async with h.submit("b", "tokens:1") as next_one:
            await first(next_one, Delta)
            assert pid not in children()


@pytest.mark.parametrize("text", ["tokens:1 hang", "tokens:1 hang-in-c", "tokens:1 stop-self"])
async def test_a_worker_that_does_not_end_the_run_is_ended(tmp_path: Path, text: str) -> None:
    async with harness(tmp_path, abort_grace_s=0.3) as h:
        pid = await h.answer("a", "pid")
        await leave_at(h.submit("a", text), Delta)
        waiting = h.submit("a", "pid")
        assert h.status("a").waiting == 1  # nobody gets the turn before the worker is gone
        async with waiting:
            event = await first(waiting, Delta)
        assert isinstance(event, Delta)
        assert event.text != pid
