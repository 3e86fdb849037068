"""One HTTP request on a connection of its own, as bare as it goes. Knows no API but event streams."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

LIMIT = 2**20
PAUSE_S = 0.2
Manner = Literal["plain", "slow", "half"]


class Broken(Exception):
    """What came is no answer of HTTP, or stops in its middle."""


@dataclass(frozen=True)
class Head:
    """Status and headers of a response, names in small letters."""

    status: int
    headers: Mapping[str, str]


class Exchange:
    """A request that was sent. A context manager: leaving it cuts the connection, whatever is on its way.

    manner: "slow" sends it in two pieces with a pause, "half" ends its side of the connection after it.
    """

    def __init__(
        self,
        port: int,
        method: str,
        path: str,
        body: bytes,
        headers: Mapping[str, str],
        manner: Manner = "plain",
    ) -> None:
        self._port = port
        self._manner = manner
        lines = [f"{method} {path} HTTP/1.1", "host: soak", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in ({"connection": "close"} | dict(headers)).items()]
        self._request = "\r\n".join(lines).encode() + b"\r\n\r\n" + body
        self._chunked = False
        self._length = 0

    async def __aenter__(self) -> Exchange:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=LIMIT)
        rest = self._request
        if self._manner == "slow":
            begun, rest = rest[: len(rest) // 2], rest[len(rest) // 2 :]
            self._writer.write(begun)
            await asyncio.sleep(PAUSE_S)
        self._writer.write(rest)
        if self._manner == "half":
            self._writer.write_eof()
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.transport.abort()

    async def head(self) -> Head:
        """Read status and headers; interim ones are left out. Raises Broken."""
        raw = interim = "HTTP/1.1 100 "
        try:
            while raw.startswith(interim):
                raw = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            raise Broken(f"no response: {error!r}") from error
        first, *lines = raw.rstrip().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        self._chunked = headers.get("transfer-encoding") == "chunked"
        self._length = int(headers.get("content-length", "0"))
        return Head(int(first.split()[1]), headers)

    async def pieces(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises Broken for one that ends before its end."""
        try:
            if not self._chunked:
                yield await self._reader.readexactly(self._length)
                return
            while size := int(await self._reader.readuntil(b"\r\n"), 16):
                yield (await self._reader.readexactly(size + 2))[:-2]
            await self._reader.readuntil(b"\r\n")
        except (asyncio.IncompleteReadError, ConnectionError, ValueError) as error:
            raise Broken(f"the body ends in its middle: {error!r}") from error

    async def body(self) -> bytes:
        """Return the whole body. Raises Broken."""
        return b"".join([piece async for piece in self.pieces()])

    async def events(self) -> AsyncIterator[dict[str, Any] | None]:
        """Yield the events of a stream, None for [DONE]; comments are left out. Raises Broken."""
        rest = b""
        async for piece in self.pieces():
            *whole, rest = (rest + piece).split(b"\n\n")
            for event in whole:
                if event.startswith(b":"):
                    continue
                if not event.startswith(b"data: "):
                    raise Broken(f"no event: {event[:200]!r}")
                data = event.removeprefix(b"data: ")
                yield None if data == b"[DONE]" else json.loads(data)
        if rest:
            raise Broken(f"an event without an end: {rest[:200]!r}")
