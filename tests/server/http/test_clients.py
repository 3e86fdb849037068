"""Clients that leave in every state, and clients that do not read."""

from __future__ import annotations

import asyncio
import re

import pytest

from backends.protocol import Loading, Prefill
from server.scheduling import Queued, Run
from tests.server.http.raw import chat_body, connected, post
from tests.server.scripted import Script, Served, delta, finished, waits

pytestmark = pytest.mark.asyncio(loop_scope="module")

STATES: dict[str, Script] = {
    "queued": waits(Queued(2)),
    "loading": waits(Queued(0), Loading(0.5, "weights")),
    "prefill": waits(Prefill(0, 10, 100)),
    "decode": waits(delta("Hello")),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("state", STATES)
async def test_a_client_that_leaves_ends_its_run(
    served: Served, state: str, stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    served.dispatcher.script = STATES[state]
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(stream=stream)))
        if stream and state == "decode":
            assert b"Hello" in await raw.reader.readuntil(b"Hello")
        else:
            while not served.dispatcher.jobs:
                await asyncio.sleep(0.01)  # the server's side of the request begins
    await served.dispatcher.run_left()
    assert served.dispatcher.runs[0].left
    served.dispatcher.script = waits()
    assert (await served.client.get("/health")).status_code == 200
    assert not [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")]


async def test_pipelined_requests_all_end_with_their_client(served: Served) -> None:
    served.dispatcher.script = waits(Queued(0))
    async with connected(served.port) as raw:
        await raw.send(post(chat_body()) + post(chat_body()))
        while not served.dispatcher.jobs:
            await asyncio.sleep(0.01)  # the server's side of the request begins
    await served.dispatcher.run_left()
    assert len(served.dispatcher.jobs) == 1


async def test_a_client_that_stays_gets_its_answer_and_its_run_is_left(served: Served) -> None:
    for stream in (False, True):
        assert (await served.chat(stream=stream)).status_code == 200
        await served.dispatcher.run_left()


async def test_a_reader_that_stops_holds_up_nobody_but_itself(served: Served) -> None:
    pushed = 0

    async def endless(run: Run) -> None:
        nonlocal pushed
        if run.job.user != "slow":
            run.push(0, delta("quick"))
            run.push(0, finished())
            return
        while True:
            for _ in range(100):
                run.push(0, delta("x" * 100))
                pushed += 1
            await asyncio.sleep(0.001)

    served.dispatcher.script = endless
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(stream=True, user="slow")))
        while pushed < 20_000:
            response = await served.chat(stream=True)
            assert "quick" in response.text
    await served.dispatcher.run_left()


async def test_a_reader_that_stopped_still_gets_everything(served: Served) -> None:
    async def long(run: Run) -> None:
        for index in range(5000):
            run.push(0, delta(f"<{index}>" + "x" * 200))
        run.push(0, finished())

    served.dispatcher.script = long
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(stream=True), b"connection: close"))
        while not served.dispatcher.jobs:
            await asyncio.sleep(0.01)  # the server's side of the request begins
        await asyncio.sleep(0.3)
        received = await raw.rest()
    assert [int(number) for number in re.findall(rb"<(\d+)>", received)] == list(range(5000))
    assert b"data: [DONE]" in received


async def test_a_hundred_clients_get_their_own_answers(served: Served) -> None:
    async def echo(run: Run) -> None:
        text = "".join(span.text for span in run.job.params[0].prompt if not span.control)
        for letter in text:
            run.push(0, delta(letter))
            await asyncio.sleep(0)
        run.push(0, finished())

    served.dispatcher.script = echo

    async def ask(index: int) -> None:
        response = await served.chat(messages=[{"role": "user", "content": f"marker-{index}"}], stream=False)
        assert response.json()["choices"][0]["message"]["content"] == f"marker-{index}"

    await asyncio.gather(*(ask(index) for index in range(100)))
