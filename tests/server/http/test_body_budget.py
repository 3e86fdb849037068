"""All bodies together take a bounded amount of memory, from their first byte to their answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from server.http.body_budget import BodyBudget
from tests.server.http.raw import RawConnection, chat_body, connected, post
from tests.server.scripted import Served, says, serving, waits

pytestmark = pytest.mark.asyncio(loop_scope="module")

LARGE = 1_000_000  # four of these leave 194,304 bytes of four megabytes


@pytest_asyncio.fixture(loop_scope="module")
async def narrow(tmp_path: Path) -> AsyncIterator[Served]:
    """A server that takes bodies of at most one megabyte, and four megabytes together."""
    async with serving(tmp_path, max_body_mb=1) as running:
        yield running


def large(size: int) -> bytes:
    start = chat_body()
    return start + b" " * (size - len(start))


async def busy(port: int, body: bytes) -> None:
    async with connected(port) as raw:
        await raw.send(post(body))
        status, headers, _ = await raw.response()
        assert (status, headers["retry-after"]) == (503, "10")


async def answered(port: int, body: bytes) -> None:
    """Ask until it is answered: the server notices a client that has left a moment later."""
    async with asyncio.timeout(60):
        while True:
            async with connected(port) as raw:
                await raw.send(post(body))
                status, _, _ = await raw.response()
                if status == 200:
                    return
                await asyncio.sleep(0.01)


async def test_unfinished_bodies_count_until_their_clients_leave(narrow: Served) -> None:
    async with AsyncExitStack() as stack:
        for _ in range(4):
            raw = await stack.enter_async_context(connected(narrow.port))
            await raw.send(post(large(LARGE), length=LARGE + 1))
        async with asyncio.timeout(60):
            while budget_of(narrow).free_bytes > 4 * 2**20 - 4 * LARGE:
                await asyncio.sleep(0.01)  # the server's side of the uploads
        await busy(narrow.port, large(300_000))
        await answered(narrow.port, large(100_000))
    await answered(narrow.port, large(300_000))


def budget_of(narrow: Served) -> BodyBudget:
    """Return the budget, wherever it is among the layers."""
    layer: Any = narrow.server.config.app.middleware_stack  # type: ignore[union-attr]
    while not isinstance(layer, BodyBudget):
        layer = getattr(layer, "app", None) or layer._app
    return layer


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_counts_until_its_answer_ends(narrow: Served, stream: bool) -> None:
    narrow.dispatcher.script = waits()
    async with AsyncExitStack() as stack:
        held: list[RawConnection] = []
        for _ in range(4):
            raw = await stack.enter_async_context(connected(narrow.port))
            body = chat_body(stream=stream)
            await raw.send(post(body + b" " * (LARGE - len(body))))
            held.append(raw)
        async with asyncio.timeout(60):
            while len(narrow.dispatcher.jobs) < 4:
                await asyncio.sleep(0.01)  # the server's side of the requests begins
        await busy(narrow.port, large(300_000))
        narrow.dispatcher.script = says("free")
        held[0].writer.transport.abort()
        await answered(narrow.port, large(300_000))
