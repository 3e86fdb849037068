"""A client that stops reading: its answer is made and kept for it, and the model goes on for others."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.isolation.streams import answer, body, http_client
from tests.sdk.servers import Endpoint, scripted_server

TOKENS = 40_000
RECEIVE_BUFFER = 4096
OTHERS = 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    with scripted_server(tmp_path_factory.mktemp("slow"), queue_size=64) as endpoint:
        yield endpoint


def stalled_reader(server: Endpoint) -> socket.socket:
    """Ask for a long stream, read its first bytes, and stop."""
    host, _, port = server.url.removeprefix("http://").partition(":")
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BUFFER)
    reader.settimeout(60)
    reader.connect((host, int(port)))
    request = json.dumps(body(f"count {TOKENS}", TOKENS)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(request)}\r\n"
    reader.sendall(f"{head}Connection: close\r\n\r\n".encode() + request)
    assert reader.recv(12) == b"HTTP/1.1 200"
    return reader


async def test_others_are_answered_and_the_rest_waits_for_the_reader(server: Endpoint) -> None:
    with stalled_reader(server) as reader:
        async with http_client(server.url) as client:
            texts = await asyncio.gather(*(answer(client, body("count 50", 50)) for _ in range(OTHERS)))
        assert texts == ["".join(f" {n}" for n in range(1, 51))] * OTHERS
        received = await asyncio.to_thread(_rest, reader)
    # More than the kernel could hold for the reader: the rest has waited in the server.
    assert len(received) > _largest_send_buffer() + RECEIVE_BUFFER
    assert received.count(b'"content":" ') == TOKENS
    assert f'" {TOKENS}"'.encode() in received
    assert b"data: [DONE]" in received


def _rest(reader: socket.socket) -> bytes:
    pieces = []
    while piece := reader.recv(1 << 20):
        pieces.append(piece)
    return b"".join(pieces)


def _largest_send_buffer() -> int:
    return int(Path("/proc/sys/net/ipv4/tcp_wmem").read_text().split()[2])
