"""Requests byte by byte, for what no HTTP client would send."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any


class RawConnection:
    """A TCP connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def response(self) -> tuple[int, dict[str, str], bytes]:
        """Read one response with a Content-Length: status, headers, body."""
        head = (await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 60)).decode("latin-1")
        status_line, *lines = head.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await asyncio.wait_for(self.reader.readexactly(int(headers.get("content-length", "0"))), 60)
        return int(status_line.split()[1]), headers, body

    async def error(self) -> tuple[int, str]:
        """Read one response that is an error: status and code."""
        status, _, body = await self.response()
        return status, json.loads(body)["error"]["code"]

    async def rest(self) -> bytes:
        """Read until the server closes. It resets a connection that it closes with bytes unread."""
        try:
            return await asyncio.wait_for(self.reader.read(), 60)
        except ConnectionResetError:
            return b""


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[RawConnection]:
    """Connect to the server; the connection is cut at the end."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield RawConnection(reader, writer)
    finally:
        writer.transport.abort()


def post(body: bytes, *headers: bytes, length: int | None = None, version: bytes = b"1.1") -> bytes:
    """Return a request for a chat completion with this body, whatever it is."""
    size = len(body) if length is None else length
    lines = [
        b"POST /v1/chat/completions HTTP/" + version,
        b"host: test",
        b"content-length: %d" % size,
        *headers,
    ]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chat_body(**fields: Any) -> bytes:
    """Return the body of a small request."""
    return json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]} | fields).encode()


def chunk(data: bytes) -> bytes:
    """Return a chunk of a chunked body."""
    return b"%x\r\n%s\r\n" % (len(data), data)
