"""The order of the two ends of a worker, its socket's and its process's, and words that come late."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from backends.protocol import (
    Begun,
    Delta,
    Finished,
    FrameDecoder,
    Generate,
    Load,
    Loading,
    Ready,
    ToWorker,
    encode_frame,
)
from server.errors import BackendCrashed, BackendTimeout
from server.workers.client import WorkerClient
from server.workers.failure import RunNotBegun
from server.workers.output import WorkerOutput
from server.workers.pending import RunEvent
from server.workers.process import WorkerProcess
from server.workers.timeouts import Timeouts
from tests.server.scripted import delta, finished, loaded
from tests.server.workers.harness import params, spec


class Output:
    """A worker's output, which is empty."""

    def tail(self) -> list[str]:
        return []

    def forget(self) -> None:
        pass


class Process:
    """A process that ends when the test says so."""

    pid = 4711

    def __init__(self) -> None:
        self.output = cast(WorkerOutput, Output())
        self.exited: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.kills = 0

    def kill(self) -> None:
        self.kills += 1


class Conversation:
    """A client whose process and socket are played by the test."""

    def __init__(self, tmp_path: Any) -> None:
        self.process = Process()
        self.loading: list[Loading] = []
        self.events: list[RunEvent] = []
        self.sent: list[ToWorker] = []
        self._decoder: FrameDecoder[ToWorker] = FrameDecoder(ToWorker)
        patient = Timeouts(load_s=60, heartbeat_s=60, stall_s=60, abort_grace_s=60)
        self.client = WorkerClient(
            cast(WorkerProcess, self.process), spec(tmp_path), patient, self.loading.append
        )
        self.client.connection_made(cast(asyncio.BaseTransport, self))
        info = loaded("scripted").info
        assert info is not None
        self.ready = Ready(info)

    def write(self, data: bytes) -> None:
        self.sent += self._decoder.feed(data)

    def says(self, *messages: Any) -> None:
        self.client.data_received(b"".join(encode_frame(message) for message in messages))

    async def run(self) -> asyncio.Task[None]:
        self.says(self.ready)
        task = asyncio.ensure_future(self.client.generate(params("x"), self.events.append))
        while not isinstance(self.sent[-1], Generate):
            await asyncio.sleep(0)
        return task

    async def exits(self, status: int) -> None:
        self.process.exited.set_result(status)
        await asyncio.sleep(0)


async def test_what_was_sent_before_the_exit_is_read_before_it_counts(tmp_path: Any) -> None:
    talk = Conversation(tmp_path)
    assert [type(message) for message in talk.sent] == [Load]
    run = await talk.run()
    await talk.exits(-9)
    assert not run.done() and not talk.client.gone.done()
    talk.says(Begun(1), delta("text"), finished())
    talk.client.connection_lost(None)
    await run
    assert [type(event) for event in talk.events] == [Delta, Finished]
    assert talk.client.gone.done()


async def test_a_socket_that_ends_first_waits_for_the_exit_which_says_how(tmp_path: Any) -> None:
    talk = Conversation(tmp_path)
    run = await talk.run()
    talk.says(Begun(1))
    talk.client.connection_lost(None)
    assert not run.done() and not talk.client.gone.done()
    await talk.exits(-11)
    with pytest.raises(BackendCrashed, match="SIGSEGV"):
        await run
    assert talk.client.gone.done()


async def test_a_run_that_had_not_begun_says_so(tmp_path: Any) -> None:
    talk = Conversation(tmp_path)
    run = await talk.run()
    talk.client.connection_lost(None)
    await talk.exits(-9)
    with pytest.raises(RunNotBegun) as failure:
        await run
    assert isinstance(failure.value.cause, BackendCrashed)


async def test_after_a_kill_nothing_more_is_heard(tmp_path: Any) -> None:
    talk = Conversation(tmp_path)
    talk.client.kill(BackendTimeout("enough"), "the test says so")
    talk.says(Loading(0.5, "late"), talk.ready)
    assert (talk.loading, talk.client.info, talk.process.kills) == ([], None, 1)
    await talk.exits(-9)
    talk.client.connection_lost(None)
    assert talk.client.gone.done()


async def test_a_late_word_of_an_earlier_run_concerns_nobody(tmp_path: Any) -> None:
    talk = Conversation(tmp_path)
    run = await talk.run()
    talk.says(Begun(1), finished())
    await run
    second = await talk.run()
    talk.says(Begun(1), delta("late"), finished())
    assert [type(event) for event in talk.events] == [Finished]
    assert not second.done()
    talk.client.kill(BackendTimeout("enough"), "the test says so")
    with pytest.raises(RunNotBegun):
        await second
    await talk.exits(-9)
    talk.client.connection_lost(None)
