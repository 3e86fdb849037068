"""HTTP as it should not be: old, slow, silent, pipelined, broken, endless."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
from contextlib import AsyncExitStack, suppress

import pytest

from server.http import connection
from tests.server.http.raw import chat_body, connected, post
from tests.server.scripted import Served, delta, waits

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_http_1_0_is_answered_and_closed(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(), version=b"1.0"))
        status, headers, body = await raw.response()
        assert (status, headers["connection"]) == (200, "close")
        assert json.loads(body)["choices"][0]["message"]["content"] == "Hello world"
        assert await raw.rest() == b""


async def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    async with connected(served.port) as raw:
        bodies = [chat_body(), b"{", chat_body(n=2)]
        await raw.send(b"".join(post(body) for body in bodies) + b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        assert (await raw.response())[0] == 200
        assert await raw.error() == (400, "invalid_request")
        assert len(json.loads((await raw.response())[2])["choices"]) == 2
        assert json.loads((await raw.response())[2]) == {"status": "ok"}


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n\r\n",
        b"GET\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /health HTTP/1.1\r\nbad header\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nhost: a\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: x\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: -5\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n",
    ],
    ids=lambda data: repr(data[:20]),
)
async def test_what_is_no_http_is_refused_in_our_form(served: Served, data: bytes) -> None:
    async with connected(served.port) as raw:
        await raw.send(data)
        assert await raw.error() == (400, "invalid_request")
        assert await raw.rest() == b""


async def test_headers_without_end_are_refused(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(b"GET /health HTTP/1.1\r\n")
        for index in range(80):
            await raw.send(b"x-%d: %s\r\n" % (index, b"a" * 1000))
        assert (await raw.error())[0] == 431
        assert await raw.rest() == b""


@pytest.mark.parametrize("count", [1, 70], ids=["one", "many"])
async def test_large_headers_are_refused_in_one_piece_too(served: Served, count: int) -> None:
    header = b"".join(b"x-%d: %s\r\n" % (index, b"a" * (70_000 // count)) for index in range(count))
    for sent in (b"GET /health HTTP/1.1\r\n" + header + b"\r\n", post(chat_body(), header.rstrip())):
        async with connected(served.port) as raw:
            await raw.send(sent)
            assert (await raw.error())[0] == 431
            assert await raw.rest() == b""
    assert served.dispatcher.jobs == []


async def test_large_headers_do_not_cost_the_request_before_them(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(post(chat_body()) + post(chat_body(), b"x: " + b"a" * 70_000))
        assert (await raw.response())[0] == 200
        assert await raw.rest() == b""
    assert len(served.dispatcher.jobs) == 1


async def test_headers_up_to_the_limit_are_taken_with_a_body(served: Served) -> None:
    async with connected(served.port) as raw:
        for _ in range(2):
            await raw.send(post(chat_body() + b" " * 100_000, b"x: " + b"a" * 64_000))
            assert (await raw.response())[0] == 200


@pytest.mark.parametrize("trailer", [b"x" * 65_000, b"a: b\r\n" * 10_000], ids=["one", "many"])
async def test_trailers_without_end_are_refused(served: Served, trailer: bytes) -> None:
    async with connected(served.port) as raw:
        await raw.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n"
            b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n"
        )
        with suppress(ConnectionError):
            for _ in range(100):
                await raw.send(trailer)
        answer = await raw.rest()
        assert not answer or answer.startswith(b"HTTP/1.1 431 ")
    assert (await served.chat()).status_code == 200


async def test_a_large_body_in_one_go_is_no_large_header(served: Served) -> None:
    async with connected(served.port) as raw:
        body = chat_body() + b" " * 300_000
        for _ in range(2):
            await raw.send(post(body))
            assert (await raw.response())[0] == 200


async def test_silent_and_slow_connections_are_closed(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEADERS_S", 0.3)
    async with connected(served.port) as silent, connected(served.port) as slow:
        await slow.send(b"GET /health HTTP/1.1\r\nx-a: ")

        async def dribble() -> None:
            while True:
                await slow.send(b"a")
                await asyncio.sleep(0.05)

        dribbling = asyncio.create_task(dribble())
        try:
            assert await silent.rest() == b""
            assert await slow.rest() == b""
        finally:
            dribbling.cancel()
            await asyncio.gather(dribbling, return_exceptions=True)


async def test_bytes_after_a_request_do_not_cut_its_answer(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "HEADERS_S", 0.1)
    served.dispatcher.script = waits(delta("Hello"))
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(stream=True)) + b"\r\n")
        await raw.reader.readuntil(b"Hello")
        await raw.send(b"\r\n")
        await asyncio.sleep(0.3)
        assert not served.dispatcher.runs[0].left


async def test_five_hundred_silent_connections_block_nobody(served: Served) -> None:
    async with AsyncExitStack() as stack:
        await asyncio.gather(*(stack.enter_async_context(connected(served.port)) for _ in range(450)))
        assert (await served.chat()).status_code == 200


async def test_connections_leave_descriptors_to_the_rest(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert connection.most_connections() == soft - connection.SPARE_DESCRIPTORS
    async with AsyncExitStack() as stack:
        # However many the tests before have left to be closed.
        raws = [await stack.enter_async_context(connected(served.port)) for _ in range(20)]
        for raw in raws:
            await raw.send(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
            assert (await raw.response())[0] == 200
        monkeypatch.setattr(connection, "most_connections", lambda: 20)
        late = await stack.enter_async_context(connected(served.port))
        status, headers, body = await late.response()
        assert (status, headers["retry-after"], headers["connection"]) == (503, "5", "close")
        assert json.loads(body)["error"]["code"] == "server_busy"
        assert await late.rest() == b""
        await raws[0].send(post(chat_body()))  # those that are there go on
        assert (await raws[0].response())[0] == 200


async def test_an_upload_nobody_reads_is_cut(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_BODY_S", 0.2)
    async with connected(served.port) as raw:
        await raw.send(b"POST /nothing HTTP/1.1\r\nhost: a\r\ncontent-length: 100000\r\n\r\n")
        assert (await raw.error())[0] == 404
        with pytest.raises(ConnectionError):
            for _ in range(100):
                await raw.send(b"x")
                await asyncio.sleep(0.02)


async def test_an_upgrade_nobody_offers_is_an_ordinary_request(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(
            b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"
        )
        assert (await raw.response())[0] == 200


@pytest.mark.parametrize("before", [1, 2, 3])
async def test_whole_requests_before_nonsense_get_their_answers(served: Served, before: int) -> None:
    async with connected(served.port) as raw:
        await raw.send(post(chat_body()) * before + b"nonsense\r\n\r\n")
        for _ in range(before):
            status, _, body = await raw.response()
            assert (status, json.loads(body)["object"]) == (200, "chat.completion")
        assert await raw.rest() == b""


async def test_tokens_leave_at_once_and_vanished_clients_are_found(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(b"GET /health HTTP/1.1\r\nhost: a\r\n\r\n")
        await raw.response()
        (port,) = [raw.writer.get_extra_info("sockname")[1]]
        (tcp,) = [
            one.transport.get_extra_info("socket")
            for one in served.server.server_state.connections
            if one.transport.get_extra_info("peername")[1] == port
        ]
        assert tcp.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert tcp.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
