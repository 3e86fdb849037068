"""A run as its reader sees it."""

from __future__ import annotations

import asyncio

import pytest

from backends.base import GenerateParams, Sampling, Usage
from backends.protocol import Delta, Finished, Loading, Prefill
from server.errors import BackendCrashed, ServerBusy
from server.scheduling import Event, Job, Queued, Run
from tests.server.examples import example_entry
from tests.server.runs import arrived

PARAMS = GenerateParams(prompt=[], sampling=Sampling())
USAGE = Usage(prompt_tokens=1, cached_tokens=0, completion_tokens=1, prefill_ms=0, decode_ms=0)
END = Finished(1, "stop", USAGE)


class Made:
    def __init__(self, answers: int = 1) -> None:
        self.left: list[Run] = []
        self.run = Run(Job(example_entry(), "c", (PARAMS,) * answers), self.left.append)


def delta(text: str) -> Delta:
    return Delta(1, text, 1)


async def test_events_come_in_order_and_end_after_the_last_finished() -> None:
    run = Made(answers=2).run
    pushed: list[tuple[int, Event]] = [(0, delta("a")), (0, END), (1, delta("b")), (1, END)]
    for index, event in pushed:
        run.push(index, event)
    async with run:
        assert [event async for event in run] == pushed


async def test_arrived_events_cost_no_trip_through_the_loop() -> None:
    run = Made().run
    for text in "abc":
        run.push(0, delta(text))
    for text in "abc":
        # A coroutine that never suspends ends at its first step.
        with pytest.raises(StopIteration) as stepped:
            run.__anext__().send(None)
        assert stepped.value.value == (0, delta(text))


async def test_what_has_arrived_is_there_before_the_end() -> None:
    run = Made().run
    assert arrived(run) == []
    run.push(0, delta("a"))
    run.push(0, END)
    assert arrived(run) == [(0, delta("a")), (0, END)]
    assert [event async for event in run] == []


async def test_a_waiting_reader_is_woken_once_for_many_events() -> None:
    run = Made().run
    reader = asyncio.ensure_future(run.__anext__())
    await asyncio.sleep(0)
    for text in "abc":
        run.push(0, delta(text))
    assert await reader == (0, delta("a"))
    assert arrived(run) == [(0, delta("b")), (0, delta("c"))]


async def test_of_states_only_the_latest_is_kept() -> None:
    run = Made().run
    run.queued(3)
    run.queued(2)
    run.push(0, Loading(0.1, "x"))
    run.push(0, Prefill(1, 32, 64))
    run.push(0, delta("a"))
    run.push(0, END)
    assert arrived(run) == [(0, Prefill(1, 32, 64)), (0, delta("a")), (0, END)]


async def test_a_position_is_reported_when_it_changes() -> None:
    run = Made().run
    run.queued(1)
    assert arrived(run) == [(0, Queued(1))]
    run.queued(1)
    assert arrived(run) == []
    run.queued(0)
    assert arrived(run) == [(0, Queued(0))]


async def test_an_error_comes_after_the_events_before_it() -> None:
    run = Made().run
    run.push(0, delta("a"))
    run.fail(BackendCrashed("gone"))
    run.fail(ServerBusy("too late to matter", 1))
    received = []
    with pytest.raises(BackendCrashed, match="gone"):
        async for event in run:
            received.append(event)
    assert received == [(0, delta("a"))]


async def test_an_error_wakes_the_reader() -> None:
    run = Made().run
    reader = asyncio.ensure_future(run.__anext__())
    await asyncio.sleep(0)
    run.fail(BackendCrashed("gone"))
    with pytest.raises(BackendCrashed):
        await reader


async def test_a_finished_run_does_not_fail_any_more() -> None:
    run = Made().run
    run.push(0, END)
    run.fail(BackendCrashed("after the end"))
    assert [event async for event in run] == [(0, END)]


async def test_leaving_says_so_once_and_drops_what_comes() -> None:
    made = Made()
    async with made.run:
        made.run.push(0, delta("a"))
    made.run.push(0, delta("b"))
    assert made.left == [made.run]
    assert arrived(made.run) == []


async def test_leaving_by_cancellation_says_so_too() -> None:
    made = Made()

    async def read() -> None:
        async with made.run:
            async for _ in made.run:
                pass

    task = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert made.left == [made.run]
