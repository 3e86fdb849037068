"""An answer that comes before the whole request has reaches a client that is still sending."""

from __future__ import annotations

import asyncio

import pytest

from server.http import connection
from tests.server.http.raw import connected
from tests.server.scripted import Served

pytestmark = pytest.mark.asyncio(loop_scope="module")

PIECE = b"x" * 65536
PIECES = 32


def head(length: int, version: str = "1.1", *more: str) -> bytes:
    lines = [
        f"POST /v1/chat/completions HTTP/{version}",
        "host: test",
        "connection: close",
        f"content-length: {length}",
        *more,
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


@pytest.mark.parametrize("version", ["1.1", "1.0"])
async def test_it_can_be_read_after_everything_was_sent(served: Served, version: str) -> None:
    too_much = 40 * 2**20
    async with connected(served.port) as raw:
        await raw.send(head(too_much, version) + PIECE)
        assert await raw.error() == (413, "body_too_large")
        for _ in range(too_much // len(PIECE) - 1):
            await raw.send(PIECE)
        assert await asyncio.wait_for(raw.reader.read(), 60) == b"", "ended, not reset"


async def test_a_client_that_does_not_end_is_let_go(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "UNREAD_BODY_S", 0.2)
    async with connected(served.port) as raw:
        await raw.send(head(2**40) + PIECE)
        assert await raw.error() == (413, "body_too_large")
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(60):
                while True:
                    await raw.send(PIECE)


async def test_a_client_that_waits_to_be_told_is_not_waited_for(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(head(2**40, "1.1", "expect: 100-continue"))
        assert await raw.error() == (413, "body_too_large")
        # Well before the time that is given to one that sends.
        assert await asyncio.wait_for(raw.reader.read(), connection.UNREAD_BODY_S / 2) == b""


async def test_one_that_leaves_is_not_waited_for(served: Served) -> None:
    async with connected(served.port) as raw:
        await raw.send(head(2**40) + PIECE)
        assert await raw.error() == (413, "body_too_large")
    async with asyncio.timeout(60):
        while served.server.server_state.tasks:
            await asyncio.sleep(0.01)
