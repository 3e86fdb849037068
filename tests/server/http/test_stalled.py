"""Readers that stop for ever on a connection that stays open, and readers that are only slow."""

from __future__ import annotations

import asyncio
import socket

import pytest

from server.http import stalled
from server.http.connection import LimitedConnection
from server.scheduling import Run
from tests.server.http.raw import chat_body, post
from tests.server.scripted import Served, delta, finished

pytestmark = pytest.mark.asyncio(loop_scope="module")

STALLED_S = 0.4
PIECES = 4000


async def long(run: Run) -> None:
    for index in range(PIECES):
        run.push(0, delta(f"<{index}>" + "x" * 2000))
    run.push(0, finished())


@pytest.fixture
def narrow(served: Served, monkeypatch: pytest.MonkeyPatch) -> socket.socket:
    """A connection that takes little until it is read."""
    monkeypatch.setattr(stalled, "STALLED_S", STALLED_S)
    served.dispatcher.script = long
    connecting = socket.socket()
    connecting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 16 * 1024)
    connecting.connect(("127.0.0.1", served.port))
    connecting.setblocking(False)
    return connecting


@pytest.mark.parametrize("stream", [True, False])
async def test_one_that_has_stopped_is_let_go(served: Served, narrow: socket.socket, stream: bool) -> None:
    with narrow:
        await asyncio.get_running_loop().sock_sendall(narrow, post(chat_body(stream=stream)))
        await served.dispatcher.run_left()
        async with asyncio.timeout(60):
            while served.server.server_state.connections:
                await asyncio.sleep(0.01)  # the server's side of the connection ends


async def test_one_that_is_slow_gets_everything(served: Served, narrow: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    received = bytearray()
    with narrow:
        await loop.sock_sendall(narrow, post(chat_body(stream=True)))
        begun = loop.time()
        while b"[DONE]" not in received[-100:]:
            piece = await asyncio.wait_for(loop.sock_recv(narrow, 2**18), 60)
            assert piece, "the connection was closed"
            received += piece
            if loop.time() - begun < 4 * STALLED_S:
                await asyncio.sleep(STALLED_S / 8)
    assert received.count(b'"content":"<') == PIECES


@pytest.mark.parametrize("leaves", [True, False])
async def test_the_watch_ends_with_the_connection_or_the_stall(
    served: Served, narrow: socket.socket, leaves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stalled, "STALLED_S", 3600.0)
    loop = asyncio.get_running_loop()
    with narrow:
        await loop.sock_sendall(narrow, post(chat_body(stream=True)))
        async with asyncio.timeout(60):
            while not (watched := _watched(served, narrow)):
                await asyncio.sleep(0.01)
            (connection,) = watched
            if not leaves:
                received = bytearray()
                while b"[DONE]" not in received[-100:]:
                    received += await loop.sock_recv(narrow, 2**18)
    async with asyncio.timeout(60):
        while leaves and connection in served.server.server_state.connections:
            await asyncio.sleep(0.01)
    assert connection._stall._timer is None


def _watched(served: Served, client: socket.socket) -> list[LimitedConnection]:
    """Return the server's side of a client's connection once it waits for its reader."""
    return [
        one
        for one in served.server.server_state.connections
        if isinstance(one, LimitedConnection)
        and one.transport.get_extra_info("peername") == client.getsockname()
        and one._stall._timer is not None
    ]
