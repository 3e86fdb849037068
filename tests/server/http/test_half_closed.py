"""Clients that end their side of the connection after the request, as nc does, and wait for the answer."""

from __future__ import annotations

import asyncio
import json

import pytest

from server.http import connection
from server.scheduling import Run
from tests.server.http.raw import RawConnection, chat_body, connected, post
from tests.server.scripted import Served, delta, finished, waits

pytestmark = pytest.mark.asyncio(loop_scope="module")

HEALTH = b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n"


async def final(raw: RawConnection) -> tuple[int, dict[str, str], bytes]:
    """Read the response that follows any interim ones."""
    while (response := await raw.response())[0] == 100:
        pass
    return response


async def late(run: Run) -> None:
    await asyncio.sleep(0.3)
    run.push(0, delta("late"))
    run.push(0, finished())


async def test_a_whole_answer_comes_then_the_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "PROBE_S", 0.1)
    served.dispatcher.script = late
    async with connected(served.port) as raw:
        await raw.send(post(chat_body()))
        raw.writer.write_eof()
        status, headers, body = await final(raw)
        assert (status, headers["connection"]) == (200, "close")
        assert json.loads(body)["choices"][0]["message"]["content"] == "late"
        assert await raw.rest() == b""


async def test_a_stream_comes_to_its_end(served: Served) -> None:
    served.dispatcher.script = late
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(stream=True)))
        raw.writer.write_eof()
        received = await raw.rest()
    assert received.lower().count(b"connection: ") == received.count(b"connection: close") == 1
    assert b'"late"' in received
    assert received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


async def test_pipelined_requests_are_all_answered(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(HEALTH * 3)
        raw.writer.write_eof()
        for _ in range(3):
            assert (await final(raw))[0] == 200
        assert await raw.rest() == b""


@pytest.mark.parametrize("sent", [b"", HEALTH[:20], post(b"{", length=100)], ids=["nothing", "head", "body"])
async def test_half_a_request_is_no_request(served: Served, sent: bytes) -> None:
    async with connected(served.port) as raw:
        await raw.send(sent)
        raw.writer.write_eof()
        assert await raw.rest() == b""
    assert served.dispatcher.jobs == []


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
async def test_one_that_is_gone_is_noticed(served: Served, version: bytes) -> None:
    served.dispatcher.script = waits()
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(), version=version))
        while not served.dispatcher.jobs:
            await asyncio.sleep(0.01)  # the server's side of the request begins
        raw.writer.close()
        await served.dispatcher.run_left()
