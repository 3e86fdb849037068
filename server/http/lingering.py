"""Answers that come before the whole request has, on connections that end with them.

A system that is told to close a connection on which bytes wait to be read resets it, and a client that still
sends loses the answer it has got. So such a request is first read to its end, within limits, and dropped.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def lingering(cycle: RequestResponseCycle, app: Any, seconds: float) -> ASGIApp:
    """Return the application, whose answers end when this cycle's request has, or after so long.

    Nothing of an answer waits but the word that it is over: one of a stated length is whole before.
    """
    wrapped: ASGIApp = app

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        unasked = False  # the client waits to be told to send its body, and is not

        async def sending(message: Message) -> None:
            nonlocal unasked
            if message["type"] == "http.response.start":
                unasked = cycle.waiting_for_100_continue
            ends = message["type"] == "http.response.body" and not message.get("more_body", False)
            if not ends or cycle.keep_alive or not cycle.more_body or unasked:
                await send(message)
                return
            await send({**message, "more_body": True})
            await _drop_the_rest(receive, seconds)
            await send({"type": "http.response.body", "body": b"", "more_body": False})

        await wrapped(scope, receive, sending)

    return answering


async def _drop_the_rest(receive: Receive, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while (message := await receive())["type"] != "http.disconnect" and message["more_body"]:
                pass
