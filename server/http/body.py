"""Reads a request's body, no more of it than allowed: counted is what arrives, not what a header says."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from server.errors import BodyTooLarge, InvalidRequest
from server.http.clients import ClientGone

SILENCE_S = 60.0


async def read_body(request: Request, limit: int, silence_s: float = SILENCE_S) -> bytes:
    """Return the whole body, of at most `limit` bytes.

    Raises BodyTooLarge, ClientGone, and InvalidRequest when nothing comes for `silence_s` seconds.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > limit:
        raise _too_large(limit)
    pieces: list[bytes] = []
    size = 0
    while True:
        try:
            async with asyncio.timeout(silence_s):
                message = await request.receive()
        except TimeoutError:
            raise InvalidRequest(
                f"the body stopped: {size} bytes came, then nothing for {silence_s:g} s; send all of it"
            ) from None
        if message["type"] == "http.disconnect":
            raise ClientGone
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if size > limit:
            raise _too_large(limit)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def _too_large(limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"the body is larger than {limit / 2**20:g} MB, this server's limit (RKSERVE_MAX_BODY_MB); send less"
    )
