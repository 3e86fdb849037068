"""Jobs through real workers: answers, loading, counts, state."""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil
import pytest

from backends.base import Span
from backends.protocol import Delta, Finished, Loading, Prefill
from server.errors import ContextLengthExceeded, ModelNotInstalled, RuntimeVersionMismatch
from server.scheduling import Job, Queued
from server.scheduling.npu_lock import NpuLock
from tests.server.examples import example_entry
from tests.server.runs import arrived
from tests.server.workers.harness import Harness, first, harness, params, text_of, until


async def test_an_answer_comes_token_by_token_and_ends(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        h.script_load("a", "progress:0.5")
        events = await h.events("a", "prefill:2 tokens:3")
    kinds = [type(event) for _, event in events]
    assert kinds[-4:] == [Delta, Delta, Delta, Finished]
    assert set(kinds[:-4]) <= {Loading, Prefill}
    assert text_of(events) == "t0 t1 t2 "
    end = events[-1][1]
    assert isinstance(end, Finished)
    assert (end.reason, end.usage.completion_tokens) == ("stop", 3)


async def test_several_answers_come_one_after_another_with_their_index(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        events = await h.events("a", "tokens:2", "tokens:1")
    assert [(i, type(event)) for i, event in events if not isinstance(event, Loading)] == [
        (0, Delta),
        (0, Delta),
        (0, Finished),
        (1, Delta),
        (1, Finished),
    ]


async def test_one_worker_serves_one_job_after_another(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        pids = [await h.answer("a", "pid") for _ in range(3)]
        assert len(set(pids)) == 1
        assert await h.answer("a", "runs") == "4"


async def test_two_models_run_beside_each_other_on_the_cpu(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=("a", "b")) as h:
        one, two = h.submit("a", "endless"), h.submit("b", "endless")
        async with one, two:
            await first(one, Delta)
            await first(two, Delta)
            await first(one, Delta)
        assert h.status("a").loaded
        assert h.status("b").loaded


async def test_what_seems_wrong_with_a_model_is_shown_once_while_it_is_loaded(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        await h.answer("a", "warn tokens:1 warn")
        assert h.status("a").warnings == ("w", "something is wrong with the model")


async def test_a_model_without_its_runtime_is_refused_at_once(tmp_path: Path) -> None:
    async with harness(tmp_path, runtime_dirs=(tmp_path / "runtimes",)) as h:
        entry = example_entry(id="board", backend="rkllm", folder=None, file="m.rkllm", runtime="==1.3.1")
        (tmp_path / "board").mkdir()
        (tmp_path / "board" / "m.rkllm").touch()
        with pytest.raises(RuntimeVersionMismatch, match="board cannot be loaded") as caught:
            h.dispatcher.submit(Job(entry, "c", (params("tokens:1"),)))
        assert str(tmp_path / "runtimes") in caught.value.message
        assert (caught.value.status, caught.value.headers) == (503, {"x-should-retry": "false"})


async def test_on_the_npu_one_runs_at_a_time(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=("c",), npu=("a", "b")) as h:
        for name in "ab":
            await h.answer(name, "tokens:1")
        one = h.submit("a", "endless")
        async with one:
            await first(one, Delta)
            async with h.submit("b", "tokens:1") as two:
                assert await first(two, Queued) == Queued(0)
                assert await h.answer("c", "tokens:1") == "t0 "  # the CPU is free all the same
                await asyncio.sleep(0.1)
                assert arrived(two) == []
                await one.__aexit__(None, None, None)
                await first(two, Finished)


async def test_a_job_waits_in_the_queue_while_another_program_has_the_npu(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=(), npu=("a",)) as h:
        with NpuLock(tmp_path / "npu.lock"):
            run = h.submit("a", "tokens:1")
            assert arrived(run) == [(0, Queued(0))]
            async with h.submit("a", "tokens:1") as leaves:
                assert await first(leaves, Queued) == Queued(1)
            assert h.status("a").waiting == 1
            assert not h.status("a").loading
        async with run:
            await first(run, Finished)
        between_runs = NpuLock(tmp_path / "npu.lock")
        await until(between_runs.try_acquire, "a free NPU")
        between_runs.release()


async def test_those_who_wait_are_told_their_place(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        async with h.submit("a", "endless") as one:
            await first(one, Delta)
            two, three = h.submit("a", "tokens:1"), h.submit("a", "tokens:1")
            assert arrived(two) == [(0, Queued(0))]
            assert arrived(three) == [(0, Queued(1))]
            async with two:
                pass
            assert arrived(three) == [(0, Queued(0))]
        async with three:
            await first(three, Finished)


async def test_a_reader_that_does_not_read_does_not_hold_up_others(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        async with h.submit("a", "tokens:20000") as unread:
            assert await h.answer("a", "tokens:1", client="d") == "t0 "
            events = [event async for event in unread]
        assert len([event for _, event in events if isinstance(event, Delta)]) == 20_000


async def test_counts_come_while_a_run_goes_on(tmp_path: Path) -> None:
    async with harness(tmp_path, heartbeat_s=0.4) as h:
        entry = h.entries["a"]
        assert await h.dispatcher.count(entry, [Span("four", False)]) is None
        async with h.submit("a", "endless") as run:
            await first(run, Delta)
            assert await h.dispatcher.count(entry, [Span("four", False), Span("!", True)]) == 5
            # A slow count neither stops the answer nor looks like a frozen worker.
            slow = asyncio.ensure_future(h.dispatcher.count(entry, [Span("slow-count", False)]))
            await first(run, Delta)
            assert not slow.done()
            assert await slow == 10
            with pytest.raises(ContextLengthExceeded):
                await h.dispatcher.count(entry, [Span("x" * 5000, False)])
            await first(run, Delta)


async def test_a_count_that_kills_the_worker_is_no_answer(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        await h.answer("a", "tokens:1")
        assert await h.dispatcher.count(h.entries["a"], [Span("die-in-count", False)]) is None
        assert await h.answer("a", "tokens:1") == "t0 "


async def test_what_the_worker_refuses_is_an_error_and_the_worker_goes_on(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        pid = await h.answer("a", "pid")
        with pytest.raises(ContextLengthExceeded) as refused:
            await h.events("a", "tokens:1 refuse", "tokens:1")
        assert (refused.value.message, refused.value.param) == ("no room", "messages")
        assert await h.answer("a", "pid") == pid


async def test_a_model_that_is_not_installed_is_refused_at_once(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        (tmp_path / "a" / "meta2.json").unlink()
        with pytest.raises(ModelNotInstalled, match="RKSERVE_MODELS_DIR/a"):
            h.submit("a", "tokens:1")


async def test_status_says_how_things_stand(tmp_path: Path) -> None:
    async with harness(tmp_path, cpu=("a", "b")) as h:
        assert not h.dispatcher.unready()  # nothing is to be preloaded
        idle = h.status("a")
        assert (idle.loaded, idle.loading, idle.waiting, idle.info) == (False, False, 0, None)
        h.script_load("a", "hang:0.2")
        async with h.submit("a", "endless") as run:
            assert h.status("a").loading
            await first(run, Delta)
            waiting = h.submit("a", "tokens:1")
            busy = h.status("a")
            assert (busy.loaded, busy.loading, busy.waiting) == (True, False, 1)
            assert busy.info is not None
            assert busy.info.runtime == "scripted 1"
            assert busy.warnings == ("w",)
        async with waiting:
            await first(waiting, Finished)
        assert not h.status("b").loaded


async def test_a_job_without_answers_only_loads(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        assert [event for event in await h.events("a") if not isinstance(event[1], Loading)] == []
        assert h.status("a").loaded


def test_parameters_reach_the_backend_as_they_are(tmp_path: Path) -> None:
    assert params("tokens:1").prompt == [Span("tokens:1", False)]
    assert Harness(tmp_path).settings.queue_size == 64


async def test_figures_of_what_waits_and_runs(tmp_path: Path) -> None:
    async with harness(tmp_path) as h:
        idle = h.dispatcher.figures()
        assert idle.waiting == idle.running == {"a": 0}
        assert (idle.loaded, idle.runtimes, idle.workers) == ({"a": False}, {}, {})
        async with h.submit("a", "endless") as busy, h.submit("a", "tokens:1"), h.submit("a", "tokens:1"):
            await first(busy, Delta)
            now = h.dispatcher.figures()
            assert (now.waiting, now.running, now.loaded) == ({"a": 2}, {"a": 1}, {"a": True})
            assert now.runtimes == {"a": ("hybrid", "scripted 1")}
            assert list(now.workers) == ["a"] and psutil.pid_exists(now.workers["a"])
        await until(lambda: h.dispatcher.figures().running == {"a": 0})
        assert h.dispatcher.figures().waiting == {"a": 0}
