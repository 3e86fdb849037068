"""Requests that offer another protocol are served as what they are: requests of HTTP/1.1."""

from __future__ import annotations

import asyncio
import json

import pytest

from server.http.upgrade import head_without_upgrade
from tests.server.http.raw import RawConnection, chat_body, chunk, connected, post
from tests.server.scripted import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

H2C = (b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAMAAABkAAQAoAAAAAIAAAAA")
WEBSOCKET = (
    b"connection: keep-alive, Upgrade",
    b"upgrade: websocket",
    b"sec-websocket-version: 13",
    b"sec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==",
)


async def answered(raw: RawConnection) -> None:
    status, headers, body = await raw.response()
    assert status == 200, body
    assert json.loads(body)["choices"][0]["message"]["content"] == "Hello world"
    assert headers.get("connection") is None


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
async def test_a_body_in_one_packet_with_its_headers(served: Served, offer: tuple[bytes, ...]) -> None:
    async with connected(served.port) as raw:
        for _ in range(3):
            await raw.send(post(chat_body(), *offer))
            await answered(raw)


async def test_a_body_that_comes_later_and_headers_in_pieces(served: Served) -> None:
    request = post(chat_body(), *H2C)
    async with connected(served.port) as raw:
        for size in (1, 7, 64):
            for start in range(0, len(request), size):
                await raw.send(request[start : start + size])
                await asyncio.sleep(0)
            await answered(raw)


async def test_a_chunked_body(served: Served) -> None:
    head = b"\r\n".join(
        [b"POST /v1/chat/completions HTTP/1.1", b"host: a", *H2C, b"transfer-encoding: chunked"]
    )
    body = chat_body()
    async with connected(served.port) as raw:
        await raw.send(head + b"\r\n\r\n" + chunk(body[:10]))
        await raw.send(chunk(body[10:]) + b"0\r\n\r\n")
        await answered(raw)
        await raw.send(post(body))
        await answered(raw)


async def test_pipelined_offers(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(post(chat_body(), *H2C) * 5 + post(b"{", *H2C) + post(chat_body()))
        for _ in range(5):
            await answered(raw)
        assert await raw.error() == (400, "invalid_request")
        await answered(raw)


async def test_very_many_pipelined_offers_in_one_packet(served: Served) -> None:
    request = b"GET /health HTTP/1.1\r\nhost: a\r\nconnection: upgrade\r\nupgrade: a\r\n\r\n"
    async with connected(served.port) as raw:
        sending = asyncio.create_task(raw.send(request * 3000))
        for _ in range(3000):
            assert (await raw.response())[0] == 200
        await sending


@pytest.mark.parametrize(("path", "status"), [(b"/v1/chat/completions", 405), (b"/nothing", 404)])
async def test_a_websocket_is_refused_in_our_form(served: Served, path: bytes, status: int) -> None:
    head = b"\r\n".join([b"GET %s HTTP/1.1" % path, b"host: a", *WEBSOCKET])
    async with connected(served.port) as raw:
        await raw.send(head + b"\r\n\r\n")
        assert (await raw.error())[0] == status


async def test_headers_with_an_offer_are_bounded_too(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(b"GET /health HTTP/1.1\r\nconnection: upgrade\r\nupgrade: h2c\r\n")
        for index in range(80):
            await raw.send(b"x-%d: %s\r\n" % (index, b"a" * 1000))
        assert (await raw.error())[0] == 431


async def test_this_is_no_proxy(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(b"CONNECT example.org:80 HTTP/1.1\r\nhost: example.org\r\n\r\n")
        assert await raw.error() == (400, "invalid_request")
        assert await raw.rest() == b""


async def test_only_what_is_about_the_upgrade_is_left_out() -> None:
    headers = [
        (b"host", b"a"),
        (b"connection", b"close, Upgrade"),
        (b"connection", b"HTTP2-Settings"),
        (b"upgrade", b"h2c"),
        (b"http2-settings", b"x"),
        (b"content-length", b"3"),
    ]
    head = head_without_upgrade(b"POST", b"/v1?a=b", "1.1", headers)
    assert head == b"POST /v1?a=b HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: 3\r\n\r\n"
