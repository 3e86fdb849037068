"""A stream of server-sent events whose status waits for the first of them. Knows no API: bytes in, bytes out.

sse-starlette does the streaming: keep-alive comments, the end when a client leaves. Added here is that the
headers are held back, and that a late error is an event.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing

from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.types import Message, Receive, Scope, Send

from server.errors import ApiError, InternalError
from server.http.clients import ClientGone
from server.http.json_line import json_line
from server.http.record import Record, record_of

DONE = b"data: [DONE]\n\n"
_SEPARATOR = "\n"
_log = logging.getLogger(__name__)


class EventStream(EventSourceResponse):
    """Sends ready-made events as they come, one message each, and every `ping_s` a comment with `state`.

    The headers are held back until the first of either, so that an error before it still has a status; a
    later one is an event, and the last. When the client leaves, the events are closed: ClientGone.
    """

    def __init__(
        self,
        events: AsyncGenerator[bytes, None],
        *,
        state: Callable[[], str],
        ping_s: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(
            self._with_late_errors(events),
            headers=headers,
            ping=ping_s,
            sep=_SEPARATOR,
            ping_message_factory=lambda: ServerSentEvent(comment=state(), sep=_SEPARATOR),
            client_close_handler_callable=self._gone,
        )
        del self.headers["connection"]  # the library's keep-alive; whether it will be, uvicorn knows
        self._start = HeldStart()
        self._record = Record()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._record = record_of(scope)
        try:
            await super().__call__(scope, receive, self._start.holding(send))
        except ExceptionGroup as group:
            # The answer failed just as its client left: there is nobody to tell.
            expected, fault = group.split((ClientGone, ApiError))
            if fault is not None or expected is None or expected.subgroup(ClientGone) is None:
                raise
            raise ClientGone from None

    async def _gone(self, _: Message) -> None:
        # uvicorn says "disconnected" after a whole response, too.
        if not self._start.complete:
            raise ClientGone

    async def _listen_for_exit_signal_with_grace(self) -> None:
        # The library asks every half second whether uvicorn is to exit, and then cuts all streams at once.
        # Here the dispatcher ends them, each with an event that says so, when their grace time is over.
        await asyncio.get_running_loop().create_future()

    async def _with_late_errors(self, events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
        try:
            async with aclosing(events):
                async for event in events:
                    yield event
        except Exception as error:
            if self._start.give_up():
                raise  # it becomes a response of its own
            failure = _failure(error)
            self._record.code = failure.code
            yield b"data: " + json_line(failure.body()) + b"\n\n"


class HeldStart:
    """Keeps back a response's start until there is something of its body to send.

    complete: the end of the body has gone out.
    """

    def __init__(self) -> None:
        self.complete = False
        self._begun = False
        self._sent = False
        self._given_up = False
        self._message: Message | None = None
        self._sending = asyncio.Lock()

    def holding(self, send: Send) -> Send:
        """Return a `send` that does so. Events and comments may be sent through it from two tasks."""

        async def held(message: Message) -> None:
            if self._given_up:
                return
            self.complete = message["type"] == "http.response.body" and not message["more_body"]
            if self._sent:
                await send(message)
            elif message["type"] == "http.response.start":
                self._message = message
            else:
                async with self._sending:
                    if not self._sent:
                        assert self._message is not None
                        self._begun = True
                        await send(self._message)
                        self._sent = True
                await send(message)

        return held

    def give_up(self) -> bool:
        """Send nothing any more, unless the start is on its way. Returns whether that came in time.

        A comment whose time has come just now would be sent before the task that sends it can be cancelled.
        """
        self._given_up = not self._begun
        return self._given_up


def _failure(error: Exception) -> ApiError:
    if not isinstance(error, ApiError):
        _log.error("a fault of the server's own in mid-stream", exc_info=error)
        return InternalError("a fault in rkserve ended the answer; the server's log tells more")
    if error.status >= 500:
        _log.warning("%s: %s", error.code, error.message)
    return error
