"""Requests that meet a worker which is ending: what never began is made by the next worker."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from backends.protocol import Delta
from server.errors import ApiError, BackendCrashed, ServerBusy
from server.scheduling.conductor import MOST_WORKERS
from server.workers.client import WorkerClient
from tests.server.workers.harness import children, first, harness, text_of, until

ROUNDS = 12


async def test_a_request_just_after_the_death_of_an_idle_worker(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        pids = [int(await h.answer("a", "pid"))]
        for _ in range(ROUNDS):
            os.kill(pids[-1], signal.SIGKILL)  # nothing has noticed when the request comes
            pids.append(int(await h.answer("a", "pid")))
        assert len(set(pids)) == ROUNDS + 1


@pytest.mark.parametrize("delay_s", [0, 0.001, 0.003, 0.01])
async def test_requests_at_every_stage_of_its_teardown(tmp_path: Path, delay_s: float) -> None:
    async with harness(tmp_path) as h:
        pid = int(await h.answer("a", "pid"))
        os.kill(pid, signal.SIGKILL)
        await asyncio.sleep(delay_s)
        answers = await asyncio.gather(*(h.answer("a", "pid", client=f"{i}") for i in range(3)))
        assert len(set(answers)) == 1
        assert int(answers[0]) != pid


async def test_a_frozen_worker_that_is_ended_costs_nobody_an_answer(tmp_path: Path) -> None:
    async with harness(tmp_path, heartbeat_s=1.0) as h:
        pid = int(await h.answer("a", "pid"))
        os.kill(pid, signal.SIGSTOP)
        # It is sent to the frozen worker, which never reads it.
        assert int(await h.answer("a", "pid")) != pid


async def test_one_that_is_unloaded_at_this_moment(tmp_path: Path) -> None:
    async with harness(tmp_path, idle_unload_s=0.05) as h:
        pid = int(await h.answer("a", "pid close hang:0.3"))
        await until(lambda: not h.status("a").loaded, "the unload")
        assert int(await h.answer("a", "pid")) != pid


async def test_an_answer_that_had_begun_is_not_made_again(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        async with h.submit("a", "pid", "endless") as run:
            pid = ""
            with pytest.raises(BackendCrashed):
                async for index, event in run:
                    if isinstance(event, Delta) and index == 0:
                        pid = event.text
                    elif isinstance(event, Delta):
                        os.kill(int(pid), signal.SIGKILL)
        assert len(h.loads("a")) == 1


async def test_of_several_answers_only_those_that_miss_are_made_by_the_next_worker(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        generate = WorkerClient.generate

        async def second_to_a_dead_one(self: WorkerClient, *args: Any) -> None:
            if self.runs_finished:
                os.kill(self.pid, signal.SIGKILL)
            await generate(self, *args)

        async with h.submit("a", "pid", "pid") as run:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(WorkerClient, "generate", second_to_a_dead_one)
                await until(lambda: len(h.loads("a")) == 2, "a new worker")
            events = [event async for event in run]
        pids = [text_of(events, index) for index in (0, 1)]
        assert pids == [str(pid) for pid in h.loads("a")]


async def test_a_request_is_given_to_so_many_workers_and_no_more(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        generate = WorkerClient.generate

        async def to_a_dead_one(self: WorkerClient, *args: Any) -> None:
            os.kill(self.pid, signal.SIGKILL)
            await generate(self, *args)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(WorkerClient, "generate", to_a_dead_one)
            with pytest.raises(BackendCrashed, match="SIGKILL"):
                await h.answer("a", "pid")
        assert len(h.loads("a")) == MOST_WORKERS
        assert int(await h.answer("a", "pid")) not in h.loads("a")[:-1]


async def test_stopping_while_a_request_waits_for_its_second_worker(tmp_path: Path) -> None:
    async with harness(tmp_path, shutdown_grace_s=0.3) as h:
        pid = int(await h.answer("a", "pid"))
        h.script_load("a", "hang")
        os.kill(pid, signal.SIGKILL)
        async with h.submit("a", "pid") as run:
            await until(lambda: len(h.loads("a")) == 2, "the new worker's load")
            await h.dispatcher.stop()
            with pytest.raises(ApiError) as error:
                async for _ in run:
                    pass
        assert type(error.value) is ServerBusy


async def test_a_client_that_leaves_meanwhile_starts_no_second_worker(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        pid = int(await h.answer("a", "pid"))
        os.kill(pid, signal.SIGSTOP)
        async with h.submit("a", "pid"):
            await until(lambda: h.busy("a"), "the request with the frozen worker")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not h.dispatcher._pool.slots, "the end of the worker")
        assert len(h.loads("a")) == 1
        async with h.submit("a", "tokens:1") as run:
            await first(run, Delta)


async def test_the_npu_is_given_on_only_when_the_worker_is_gone(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=(), npu=("a", "b")) as h:
        h.script_load("a", "linger:0.5 cannot-load")
        async with h.submit("a", "tokens:1"), h.submit("b", "tokens:1") as waits:
            await until(lambda: h.loads("b"), "the load of the other model")
            assert h.loads("a")[0] not in children()
            await first(waits, Delta)


async def test_a_model_in_use_is_not_taken_for_idle(tmp_path: Path) -> None:
    async with harness(tmp_path, idle_unload_s=0.8, abort_grace_s=0.1) as h:
        pid = await h.answer("a", "pid")
        assert len((await h.answer("a", "delay:0.1 tokens:15")).split()) == 15  # for 1.5 s
        assert await h.answer("a", "pid") == pid
