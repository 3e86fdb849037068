"""Fetched images take from the memory for all requests, in the application as it is put together."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from server.images.loader import ImageLoader
from tests.server.http.raw import connected, post
from tests.server.http.test_body_budget import budget_of
from tests.server.scripted import Served, entry, says, serving, waits
from tests.vision.pictures import quadrants, saved
from tests.vision.test_fetch import Site, answer, site

pytestmark = pytest.mark.asyncio(loop_scope="module")

MB = 2**20
PICTURE = saved(quadrants(8, 8)) + bytes(1_000_000)  # what follows an image is allowed, and counts
VIEWER = entry(
    "viewer",
    backend="rkllm",
    vision={"file": "encoder.onnx", "size": (448, 448)},
    capabilities=("chat", "vision"),
)


@pytest_asyncio.fixture(loop_scope="module")
async def web() -> AsyncIterator[Site]:
    async with site() as running:
        running.pages["/a"] = answer("200 OK", PICTURE)
        yield running


@pytest_asyncio.fixture(loop_scope="module")
async def narrow(tmp_path: Path, web: Site, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    """A server with four megabytes for all requests, which may fetch from `web`, no public address."""
    monkeypatch.setattr("server.app.ImageLoader", partial(ImageLoader, fetcher=web.fetcher()))
    async with serving(tmp_path, more=(VIEWER,), max_body_mb=1, image_urls=True) as running:
        (tmp_path / "models" / "viewer" / "encoder.onnx").write_bytes(b"graph")
        yield running


def asking(web: Site, *, stream: bool) -> bytes:
    content = [{"type": "image_url", "image_url": {"url": web.url("/a")}}]
    body = {"model": "viewer", "messages": [{"role": "user", "content": content}], "stream": stream}
    return json.dumps(body).encode()


@pytest.mark.parametrize("stream", [False, True])
async def test_they_count_until_the_answer_ends(narrow: Served, web: Site, stream: bool) -> None:
    body = asking(web, stream=stream)
    narrow.dispatcher.script = waits()
    async with AsyncExitStack() as stack:
        for held in range(1, 5):
            raw = await stack.enter_async_context(connected(narrow.port))
            await raw.send(post(body))
            async with asyncio.timeout(60):
                while len(narrow.dispatcher.jobs) < held:
                    await asyncio.sleep(0.01)  # the server's side of the request begins
            assert budget_of(narrow).free_bytes == 4 * MB - held * (len(body) + len(PICTURE))
        async with connected(narrow.port) as fifth:
            await fifth.send(post(body))
            status, headers, text = await fifth.response()
            assert (status, headers["retry-after"]) == (503, "10")
            assert json.loads(text)["error"]["code"] == "server_busy"
        assert len(narrow.dispatcher.jobs) == 4
        assert budget_of(narrow).free_bytes == 4 * MB - 4 * (len(body) + len(PICTURE))
    async with asyncio.timeout(60):
        while budget_of(narrow).free_bytes < 4 * MB:
            await asyncio.sleep(0.01)  # the clients have left
    narrow.dispatcher.script = says("A picture.")
    async with connected(narrow.port) as raw:
        await raw.send(post(body))
        status, _, _ = await raw.response()
    assert status == 200
    async with asyncio.timeout(60):
        while budget_of(narrow).free_bytes < 4 * MB:
            await asyncio.sleep(0.01)
