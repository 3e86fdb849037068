"""A stream whose answer and whose client end in the same moment, which no client can bring about at will."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator

import pytest
from starlette.types import Message

from server.errors import BackendCrashed, InvalidRequest, ServerBusy
from server.http.clients import ClientGone
from server.http.sse import EventStream

SCOPE = {"type": "http", "method": "POST", "path": "/", "headers": []}


async def ends_as_its_client_leaves(error: Exception) -> None:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    left: asyncio.Future[None] = loop.create_future()

    async def events() -> AsyncGenerator[bytes, None]:
        await ended
        raise error
        yield b""

    async def receive() -> Message:
        await left
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        raise AssertionError("nothing is to be sent")

    stream = EventStream(events(), state=lambda: "ping", ping_s=60)
    answering = asyncio.ensure_future(stream(SCOPE, receive, send))
    await asyncio.sleep(0.05)  # both wait now
    ended.set_result(None)
    left.set_result(None)
    await answering


@pytest.mark.parametrize(
    "error", [ServerBusy("full", 1), BackendCrashed("gone"), InvalidRequest("no")], ids=lambda e: e.code
)
async def test_an_error_for_nobody_is_no_fault(error: Exception) -> None:
    with pytest.raises(ClientGone):
        await ends_as_its_client_leaves(error)


async def test_a_fault_of_the_servers_own_stays_one() -> None:
    with pytest.raises(ExceptionGroup) as caught:
        await ends_as_its_client_leaves(ZeroDivisionError())
    assert caught.group_contains(ZeroDivisionError)


@pytest.mark.parametrize("turns", range(6))
async def test_a_comment_that_is_due_as_the_answer_fails_takes_no_status_from_it(turns: int) -> None:
    """A task whose timer has fired is cancelled after its next step, in which it would send the comment."""
    sent: list[Message] = []

    async def events() -> AsyncGenerator[bytes, None]:
        await asyncio.sleep(0.02)
        time.sleep(0.1)  # the comment is overdue when the loop goes on
        for _ in range(turns):
            await asyncio.sleep(0)
        raise BackendCrashed("gone")
        yield b""

    async def receive() -> Message:
        never: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        return await never

    async def send(message: Message) -> None:
        sent.append(message)

    stream = EventStream(events(), state=lambda: "ping", ping_s=0.05)
    try:
        await stream(SCOPE, receive, send)
    except BackendCrashed:
        assert sent == [], "raised: to become a response"
    else:
        assert [message["type"] for message in sent[:2]] == ["http.response.start", "http.response.body"]
        assert any(b"backend_crashed" in message.get("body", b"") for message in sent), "said in the stream"
