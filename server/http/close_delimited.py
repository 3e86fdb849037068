"""Answers for clients of HTTP/1.0, which know no chunks: the end of the connection ends the body."""

from __future__ import annotations

from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def close_delimited(cycle: RequestResponseCycle, app: Any) -> ASGIApp:
    """Return the application, answering this cycle without Transfer-Encoding.

    uvicorn would send chunks. What decides it are two attributes of its cycle: whether the body is chunked,
    and how much of it is to come.
    """
    wrapped: ASGIApp = app

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        unknown_length = False

        async def sending(message: Message) -> None:
            nonlocal unknown_length
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                unknown_length = b"content-length" not in names
                if unknown_length:
                    cycle.chunked_encoding = False
            elif unknown_length:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await wrapped(scope, receive, sending)

    return answering
