"""A client for many streams at once: what a request's answer was, and nothing of an SDK's own cost."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2

from tests.sdk.servers import MODEL

TIMEOUT_S = 60


@asynccontextmanager
async def http_client(url: str) -> AsyncIterator[httpx2.AsyncClient]:
    """Give a client without a bound on its connections; they are closed at the end."""
    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx2.AsyncClient(base_url=url, timeout=TIMEOUT_S, limits=limits) as client:
        yield client


def body(content: str, max_tokens: int, **more: Any) -> dict[str, Any]:
    """Return a greedy streaming request."""
    message = {"role": "user", "content": content}
    return {
        "model": MODEL,
        "messages": [message],
        "temperature": 0,
        "max_tokens": max_tokens,
        "stream": True,
    } | more


async def answer(client: httpx2.AsyncClient, request: dict[str, Any]) -> str:
    """Return the whole text of a stream. Raises AssertionError unless it ends as it should."""
    pieces: list[str] = []
    identities: set[str] = set()
    reason, done = None, False
    async with client.stream("POST", "/v1/chat/completions", json=request) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                assert line == "" or line.startswith(":"), line
                continue
            assert not done, "an event after the end"
            if line == "data: [DONE]":
                done = True
                continue
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            identities.add(event["id"])
            (choice,) = event["choices"]
            pieces.append(choice["delta"].get("content") or "")
            reason = choice["finish_reason"] or reason
    assert done
    assert reason in ("stop", "length")
    assert len(identities) == 1
    return "".join(pieces)
