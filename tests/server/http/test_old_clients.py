"""Clients of HTTP/1.0 know no chunks: the end of the connection is the end of the answer."""

from __future__ import annotations

import json

import pytest

from server.errors import LoadFailed
from tests.server.http.raw import chat_body, connected, post
from tests.server.scripted import Served, fails

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("options", [(), (b"connection: keep-alive",)], ids=["plain", "keep-alive"])
async def test_a_stream_is_plain_text_until_the_end(served: Served, options: tuple[bytes, ...]) -> None:
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(stream=True), *options, version=b"1.0"))
        head, _, body = (await raw.rest()).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert b"transfer-encoding" not in head.lower()
    assert b"content-length" not in head.lower()
    assert [line for line in head.lower().split(b"\r\n") if line.startswith(b"connection:")] == [
        b"connection: close"
    ]
    events = body.decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    text = [chunk["choices"][0]["delta"].get("content") for chunk in chunks]
    assert "".join(piece or "" for piece in text) == "Hello world"


async def test_an_error_in_mid_stream_is_the_last_event(served: Served) -> None:
    served.dispatcher.script = fails(LoadFailed("oh"), "some")
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(stream=True), version=b"1.0"))
        body = (await raw.rest()).partition(b"\r\n\r\n")[2]
    assert json.loads(body.decode().strip().rsplit("data: ", 1)[1])["error"]["code"] == "load_failed"


async def test_a_whole_answer_has_its_length(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(), version=b"1.0"))
        status, headers, body = await raw.response()
        assert (status, headers["content-length"]) == (200, str(len(body)))
        assert await raw.rest() == b""


async def test_a_stream_s_connection_is_kept_unless_the_client_wants_it_closed(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(stream=True)))
        head = await raw.reader.readuntil(b"\r\n\r\n")
        assert b"connection:" not in head.lower()  # HTTP/1.1: kept
        await raw.reader.readuntil(b"\r\n0\r\n\r\n")
        await raw.send(post(chat_body(stream=True), b"connection: close"))
        rest = await raw.rest()
    assert rest.lower().count(b"connection: ") == rest.count(b"connection: close") == 1
