"""Reads a request's body, no more of it than allowed: counted is what arrives, not what a header says."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from server.errors import BodyTooLarge, InvalidRequest
from server.http.body_budget import share_of
from server.http.clients import ClientGone

# The longest pause within a body, and the time it may take at first. What has come earns more time.
SILENCE_S = 60.0
FLOOR_BYTES_PER_S = 32 * 1024


async def read_body(request: Request, limit: int) -> bytes:
    """Return the whole body, of at most `limit` bytes. It counts against the budget while the request lasts.

    Raises BodyTooLarge, ClientGone, ServerBusy where all bodies together are too much, and InvalidRequest
    when nothing comes for SILENCE_S or, after that time, the whole comes more slowly than FLOOR_BYTES_PER_S.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    share = share_of(request.scope)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    pieces: list[bytes] = []
    size = 0
    while True:
        silence = loop.time() + SILENCE_S
        latest = begun + SILENCE_S + size / FLOOR_BYTES_PER_S
        try:
            async with asyncio.timeout_at(min(silence, latest)):
                message = await request.receive()
        except TimeoutError:
            raise _too_slow(size, loop.time() - begun) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        share.add(len(piece))
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def _too_slow(size: int, took_s: float) -> InvalidRequest:
    return InvalidRequest(
        f"the body stopped or comes too slowly: {size} bytes came in {took_s:.0f} s. A pause may last "
        f"{SILENCE_S:g} s, and after that time {FLOOR_BYTES_PER_S // 1024} KB must come each second; "
        "send less, or over a faster connection"
    )


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is larger than {limit / 2**20:g} MB, this server's limit (RKSERVE_MAX_BODY_MB); send less"
    )
